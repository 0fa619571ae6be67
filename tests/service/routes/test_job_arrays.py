"""Arrays: one submission of many jobs, how many of them run at once, how they are found, stopped and cloned."""

import re
from datetime import timedelta

import pytest
from sqlalchemy import select, update
from support.live_service import make_job_body

from core.db.database import now
from core.db.models.jobs import Attempt, Job
from core.settings.limits import LimitSettings
from service.auth.per_key_limits import Limits

pytestmark = pytest.mark.integration


@pytest.fixture
def members(client):
    """Return a function that lists the members of an array by index."""

    def members(array_id):
        return client.get("/jobs", params={"array": array_id, "limit": 500}).json()["jobs"][::-1]

    return members


@pytest.fixture
def array(client, members):
    """Return a function that submits an array and lists its members."""

    def array(text, **fields):
        answer = client.post("/jobs", json=make_job_body(array=text, **fields))
        assert answer.status_code == 201, answer.text
        return members(answer.json()["arrayId"])

    return array


def test_each_member_has_its_index_and_its_value(array):
    assert [(job["arrayIndex"], job["arrayValue"]) for job in array("5-7")] == [(5, "5"), (6, "6"), (7, "7")]
    assert [job["arrayValue"] for job in array("a, b,c")] == ["a", "b", "c"]
    assert [job["arrayValue"] for job in array("one\ntwo words, with a comma\n")] == ["one", "two words, with a comma"]
    assert [job["name"] for job in array("0-1", name="sweep")] == ["sweep[0]", "sweep[1]"]


def test_no_more_members_run_at_once_than_wanted(client, array, members, worker):
    worker.register()
    jobs = array("0-3%2")
    other = client.post("/jobs", json=make_job_body()).json()["id"]
    running = [worker.start() for _ in range(3)]
    assert [job.id for job in running] == [jobs[0]["id"], jobs[1]["id"], other]
    waiting = members(jobs[0]["arrayId"])[2]
    assert (waiting["reason"], waiting["estimatedStartAt"]) == ("array_limit", None)
    assert waiting["message"].startswith("The array's limit of 2 running jobs is reached.")
    worker.end(running[1])
    assert worker.start().id == jobs[2]["id"]


def test_a_repeat_with_its_idempotency_key_makes_no_second_array(client):
    body, headers = make_job_body(array="0-4"), {"Idempotency-Key": "k"}
    first, again = (client.post("/jobs", json=body, headers=headers) for _ in range(2))
    assert (first.status_code, again.status_code) == (201, 200)
    assert first.json()["id"] == again.json()["id"]
    assert len(client.get("/jobs").json()["jobs"]) == 5
    assert client.post("/jobs", json=make_job_body(array="0-5"), headers=headers).status_code == 422


@pytest.mark.parametrize("members", ["9-1", "0-1000", "", ",", "a\tb,c"])
@pytest.mark.parametrize("query", ["", "?dryRun=true"])
def test_wrong_members_are_refused(client, members, query):
    answer = client.post(f"/jobs{query}", json=make_job_body(array=members))
    assert answer.status_code == 400
    assert answer.json()["error"]["field"] == "array"
    assert client.get("/jobs").json()["jobs"] == []


def test_a_dry_run_says_how_many_jobs_there_would_be(client):
    plan = client.post("/jobs?dryRun=true", json=make_job_body(array="0-99%8")).json()
    assert "An array of 100 jobs would be submitted." in plan["notes"]
    assert client.get("/jobs").json()["jobs"] == []


def test_no_job_of_a_comparison_is_an_array(client):
    compared = client.post("/comparisons", json=make_job_body(array="0-1", machineType="CPU,P4000"))
    assert (compared.status_code, compared.json()["error"]["field"]) == (400, "array")


def test_a_folded_list_has_one_job_for_an_array_with_the_states_of_its_members(client, array, worker):
    worker.register()
    jobs = array("0-3", name="sweep")
    alone = client.post("/jobs", json=make_job_body(name="alone")).json()
    worker.end(worker.start(), "exit_nonzero", exit_code=3)
    worker.start()
    folded = client.get("/jobs?fold=true").json()["jobs"]
    assert [job["name"] for job in folded] == ["alone", "sweep"]
    assert folded[1]["arrayMembers"] == {"Failed": 1, "Running": 1, "Pending": 2}
    assert client.delete(f"/jobs/{jobs[0]['id']}").status_code == 204
    folded = client.get("/jobs?fold=true").json()["jobs"]
    assert [(job["id"], job["arrayMembers"]) for job in folded] == [
        (alone["id"], None),
        (jobs[1]["id"], {"Running": 1, "Pending": 2}),
    ]


def test_the_line_of_an_array_has_the_time_and_the_cost_of_all_its_members(client, array, worker, database):
    worker.register()
    alone = client.post("/jobs", json=make_job_body(name="alone")).json()["id"]
    array_id = array("0-3", name="four")[0]["arrayId"]
    assert client.get("/jobs?fold=true").json()["jobs"][0]["durationSeconds"] is None
    for _ in range(3):
        worker.end(worker.start())
    with database.write() as session:
        ended = session.scalars(now().select()).one()
        for job in session.scalars(select(Job).where(Job.state == "succeeded")):
            began = ended - timedelta(hours=3 if job.id == alone else 2)
            times = {"started_at": began, "ended_at": ended}
            session.execute(update(Job).where(Job.id == job.id).values(times))
            session.execute(update(Attempt).where(Attempt.job_id == job.id).values(times))
    price = client.get(f"/jobs/{alone}").json()["pricePerHour"]

    def folded(query=""):
        return client.get(f"/jobs?fold=true{query}").json()["jobs"]

    whole = folded()[0]
    assert (whole["arrayMembers"], whole["durationSeconds"]) == ({"Stopped": 2, "Pending": 2}, 4 * 3600)
    assert whole["cost"] == pytest.approx(4 * price)
    assert whole["finishedAt"] is None, "some of it waits"
    for column in ("cost", "duration"):
        assert [job["name"] for job in folded(f"&sort=-{column}")] == ["four", "alone"]
        assert [job["name"] for job in folded(f"&sort={column}")] == ["alone", "four"]
    page = re.sub(r"\s+", " ", client.get("/ui/jobs").text)
    assert "array of 4" in page
    assert 'class="number brief" data-value="14400.0">4 h 00 min</td>' in page
    for job in client.get("/jobs", params={"q": f"array:{array_id}"}).json()["jobs"]:
        client.post(f"/jobs/{job['id']}/stop")
    assert folded()[0]["finishedAt"] is not None


def test_the_query_finds_an_array_and_one_of_its_members(client, array):
    jobs, _ = array("0-2"), array("0-1")
    array_id = jobs[0]["arrayId"]

    def found(query):
        return [job["id"] for job in client.get("/jobs", params={"q": query}).json()["jobs"]][::-1]

    assert found(f"array:{array_id}") == [job["id"] for job in jobs]
    assert found(f"array:{array_id}_1") == [jobs[1]["id"]]
    assert found(f"array:{array_id}_9") == found(f"array:{array_id}_x") == []
    assert found(f"-array:{array_id}") != []


def test_an_array_is_stopped_tagged_and_deleted_whole(client, array, members, worker):
    worker.register()
    jobs = array("0-149%1")
    array_id = jobs[0]["arrayId"]
    running = worker.start()

    def act(action, **fields):
        body = {"action": action, "ids": [array_id], **fields}
        return client.post("/jobs/actions", json=body).json()["results"][0]["done"]

    assert act("tag", add=["kept"])
    assert act("stop")
    stopped = members(array_id)
    assert {job["state"] for job in stopped[1:]} == {"Cancelled"}
    assert (stopped[0]["id"], stopped[0]["stopRequested"]) == (running.id, True)
    assert all(job["tags"] == ["kept"] for job in stopped)
    assert act("delete")
    assert members(array_id) == []
    assert not act("stop")


def test_the_failed_members_are_repeated_with_their_index_and_value(client, array, members, worker):
    worker.register()
    jobs = array("a,b,c%2", name="sweep")
    array_id = jobs[0]["arrayId"]
    none = client.post(f"/jobs/{array_id}/clone?onlyFailed=true")
    assert (none.status_code, none.json()["error"]["field"]) == (400, "onlyFailed")
    for code in (0, 3, 4):
        worker.end(worker.start(), "exit_nonzero" if code else "completed", exit_code=code)
    headers = {"Idempotency-Key": "again"}
    first, repeated = (client.post(f"/jobs/{array_id}/clone?onlyFailed=true", headers=headers) for _ in range(2))
    assert (first.status_code, repeated.status_code) == (201, 200)
    again = members(first.json()["arrayId"])
    shown = [(job["arrayIndex"], job["arrayValue"], job["name"], job["parentJobId"]) for job in again]
    assert shown == [(1, "b", "sweep[1]", jobs[1]["id"]), (2, "c", "sweep[2]", jobs[2]["id"])]
    whole = client.post(f"/jobs/{array_id}/clone", json={"command": "other"}).json()
    assert [(job["arrayValue"], job["command"]) for job in members(whole["arrayId"])] == [
        (value, "other") for value in "abc"
    ]
    one = client.post(f"/jobs/{jobs[2]['id']}/clone").json()
    assert (one["arrayIndex"], one["arrayValue"], one["name"]) == (2, "c", "sweep[2]")
    assert one["arrayId"] not in {array_id, first.json()["arrayId"]}
    assert client.post("/jobs/a000000000000z/clone").status_code == 404


def test_limits_count_each_member_and_refuse_an_array_whole(client, stores):
    stores.limits = Limits(LimitSettings(queued_per_key=5))
    refused = client.post("/jobs", json=make_job_body(array="0-5"))
    assert refused.status_code == 429
    assert client.get("/jobs").json()["jobs"] == []
    assert client.post("/jobs", json=make_job_body(array="0-4")).status_code == 201
    assert client.post("/jobs", json=make_job_body()).status_code == 429


def test_the_submissions_of_a_minute_count_members_and_an_array_costs_at_most_a_minute(client, stores):
    stores.limits = Limits(LimitSettings(submissions_per_minute=10))
    assert client.post("/jobs", json=make_job_body(array="0-7")).status_code == 201
    refused = client.post("/jobs", json=make_job_body(array="0-7"))
    assert refused.status_code == 429
    assert len(client.get("/jobs").json()["jobs"]) == 8
    stores.limits = Limits(LimitSettings(submissions_per_minute=10))
    assert client.post("/jobs", json=make_job_body(array="0-49")).status_code == 201


def test_the_page_of_jobs_shows_an_array_as_one_row_that_opens(client, array):
    jobs = array("0-2", name="sweep", tags=["nightly"])
    array_id = jobs[0]["arrayId"]
    for query in ({}, {"q": "tag:nightly"}):
        page = client.get("/ui/jobs", params=query).text
        assert "array of 3" in page
        assert f'value="{array_id}"' in page
        assert jobs[1]["id"] not in page
        assert f"/ui/jobs?q=array%3A{array_id}&amp;charts=1" in page
    opened = client.get("/ui/jobs", params={"charts": "1", "q": f"array:{array_id}"}).text
    assert "<h1>sweep</h1>" in opened
    assert all(f'value="{job["id"]}"' in opened for job in jobs)
    compared = client.get("/ui/jobs", params={"charts": "1", "ids": array_id}).text
    assert all(job["id"] in compared for job in jobs)
    assert f"array%3A{array_id}" in client.get(f"/ui/jobs/{jobs[1]['id']}/config").text


def test_members_share_only_where_they_can(client, docker_client):
    def refusal(client, **fields):
        answer = client.post("/jobs", json=make_job_body(**fields)).json()
        return (answer.get("error") or {}).get("field"), (answer.get("error") or {}).get("message", "")

    assert refusal(client, array="0-1", arrayReuse="on") == (None, "")
    assert refusal(docker_client, array="0-1", arrayReuse="off") == (None, "")
    where, message = refusal(docker_client, array="0-1", arrayReuse="on")
    assert where == "arrayReuse"
    assert "Leave arrayReuse out" in message
    assert refusal(client, arrayReuse="on")[0] == "arrayReuse"
    assert refusal(client, array="0-1", arrayReuse="perhaps") == ("arrayReuse", "'perhaps' is neither on nor off.")
