"""Jobs that wait for others: in which order they start, what they say meanwhile, and how they end if they never can."""

import pytest
from support.live_service import make_job_body

from core.storage import retention


@pytest.fixture
def submit(client):
    def submit(**fields):
        answer = client.post("/jobs", json=make_job_body(**fields))
        assert answer.status_code == 201, answer.text
        return answer.json()["id"]

    return submit


def shown(client, job_id):
    return client.get(f"/jobs/{job_id}").json()


def test_a_job_starts_when_those_that_it_waits_for_have_ended(client, submit, worker):
    worker.register()
    first, second = submit(), submit()
    third = submit(after=[first, f"{second}:ended"])
    running = worker.start(), worker.start()
    waiting = shown(client, third)
    assert (waiting["reason"], waiting["after"]) == ("after_job", [first, f"{second}:ended"])
    assert f"{first} has succeeded" in waiting["message"]
    assert f"{second} has ended" in waiting["message"]
    assert waiting["estimatedStartAt"] is None
    assert f'href="/ui/jobs/{first}"' in client.get(f"/ui/jobs/{third}/config").text
    worker.end(running[1], "exit_nonzero", exit_code=1)
    assert shown(client, third)["message"] == f"The job starts when {first} has succeeded."
    worker.end(running[0])
    assert worker.start().id == third


def test_a_failure_cancels_all_that_follow_but_those_that_run_anyway(client, submit, worker):
    worker.register()
    first = submit()
    second = submit(after=[first])
    third = submit(inputs=[f"{second}:model"])
    cleanup = submit(after=[f"{third}:ended", first + ":ended"])
    worker.end(worker.start(), "exit_nonzero", exit_code=1)
    for job_id, before, why in (
        (second, first, "it did not: The command ended"),
        (third, second, "it never started. Clone it"),
    ):
        ended = shown(client, job_id)
        assert (ended["state"], ended["reason"]) == ("Cancelled", "dependency_failed")
        assert ended["message"].startswith(f"The job was waiting for {before} to succeed, but {why}")
    assert worker.start().id == cleanup


def test_a_long_chain_ends_at_once(client, submit):
    first = last = submit()
    for _ in range(50):
        last = submit(after=[last])
    assert client.delete(f"/jobs/{first}").status_code in {200, 204}
    assert shown(client, last)["reason"] == "dependency_failed"


@pytest.mark.parametrize("running", [False, True])
@pytest.mark.parametrize(("method", "why"), [("delete", "it was deleted"), ("stop", "it did not: ")])
def test_it_is_said_that_the_job_before_was_deleted_or_stopped(client, submit, worker, method, why, running):
    worker.register()
    first = submit()
    after = submit(after=[first])
    job = worker.start() if running else None
    if method == "delete":
        client.delete(f"/jobs/{first}")
    else:
        client.post(f"/jobs/{first}/stop")
    if job is not None:
        worker.end(job, "stopped_by_user", exit_code=143)
    ended = shown(client, after)
    assert ended["reason"] == "dependency_failed"
    assert ended["message"].startswith(f"The job was waiting for {first} to succeed, but {why}")
    assert ended["message"].count(". ") == 1, "one sentence of the other job, without its advice"


def test_a_retry_is_waited_for(client, submit, worker):
    worker.register()
    first = submit(maxAttempts=2)
    second = submit(after=[first])
    worker.end(worker.start(), "exit_nonzero", exit_code=1)
    assert shown(client, second)["reason"] == "after_job"
    client.post(f"/jobs/{first}/stop")
    assert shown(client, second)["state"] == "Cancelled"


def test_a_stopped_job_that_waits_does_not_come_back(client, submit, worker):
    worker.register()
    first = submit()
    second = submit(after=[first])
    third = submit(after=[second])
    client.post(f"/jobs/{second}/stop")
    assert [shown(client, one)["reason"] for one in (second, third)] == ["stopped_by_user", "dependency_failed"]
    worker.end(worker.start())
    assert shown(client, second)["reason"] == "stopped_by_user"


def test_what_has_happened_already_is_not_waited_for(client, submit, worker):
    worker.register()
    first, second = submit(), submit()
    worker.end(worker.start())
    worker.end(worker.start(), "exit_nonzero", exit_code=1)
    third = submit(after=[first, f"{second}:ended"])
    assert worker.start().id == third
    clone = client.post(f"/jobs/{third}/clone", json={"after": [first]}).json()
    assert clone["after"] == [first]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"after": ["j1nosuch"]}, "There is no job j1nosuch to wait for"),
        ({"after": ["train"]}, "is not a job to wait for. Write its id"),
        ({"after": ["j1:failed"]}, "is not a job to wait for. Write its id"),
        ({"inputs": ["j1"]}, "is not a valid input"),
        ({"inputs": ["j1:/etc"]}, "is not a valid input"),
        ({"inputs": ["j1:a/../../b"]}, "is not a valid input"),
        ({"inputs": ["j1:."]}, "is not a valid input"),
        ({"inputs": ["j1:a", "j2:a/b"]}, "The folders of two inputs overlap"),
        ({"after": [f"j{n}" for n in range(101)]}, "at most 100"),
    ],
)
def test_what_cannot_be_waited_for_is_refused(client, fields, words):
    for path in ("/jobs", "/jobs?dryRun=true"):
        answer = client.post(path, json=make_job_body(**fields))
        assert answer.status_code == 400
        assert words in answer.json()["error"]["message"]
    assert client.get("/jobs").json()["jobs"] == []


def test_a_job_that_cannot_succeed_any_more_is_refused(client, submit, worker):
    worker.register()
    failed = submit()
    worker.end(worker.start(), "exit_nonzero", exit_code=1)
    answer = client.post("/jobs", json=make_job_body(after=[failed]))
    assert answer.status_code == 400
    assert "has failed, so it can no longer succeed" in answer.json()["error"]["message"]


def test_artifacts_that_were_deleted_are_no_input(client, submit, worker, database):
    worker.register()
    first = submit()
    worker.end(worker.start())
    with database.write() as session:
        retention.mark_outputs_removed(session, first)
    answer = client.post("/jobs", json=make_job_body(inputs=[f"{first}:model"]))
    assert "have been deleted" in answer.json()["error"]["message"]


def test_a_job_waits_for_all_members_of_an_array(client, submit, worker):
    worker.register()
    array_id = shown(client, submit(array="0-2"))["arrayId"]
    model, anyway, chained = (
        submit(after=[array_id]),
        submit(after=[f"{array_id}:ended"]),
        submit(array="0-149", after=[array_id]),
    )
    waiting = shown(client, model)
    assert waiting["message"] == f"The job starts when all members of {array_id} have succeeded."
    assert f"/ui/jobs?q=array%3A{array_id}" in client.get(f"/ui/jobs/{model}/config").text
    running = [worker.start() for _ in range(3)]
    worker.end(running[2])
    worker.end(running[0])
    assert {shown(client, one)["reason"] for one in (model, anyway, chained)} == {"after_job"}
    worker.end(running[1])
    assert [worker.start().id for _ in range(3)] == [model, anyway, chained]
    assert shown(client, submit(after=[array_id]))["reason"] != "after_job"


def test_a_failed_member_cancels_what_waits_for_its_array(client, submit, worker):
    worker.register()
    array_id = shown(client, submit(array="0-1"))["arrayId"]
    model, anyway = submit(after=[array_id]), submit(after=[f"{array_id}:ended"])
    failed, other = worker.start(), worker.start()
    worker.end(failed, "exit_nonzero", exit_code=1)
    ended = shown(client, model)
    assert (ended["reason"], failed.id in ended["message"]) == ("dependency_failed", True)
    assert shown(client, anyway)["reason"] == "after_job"
    refused = client.post("/jobs", json=make_job_body(after=[array_id]))
    assert refused.status_code == 400
    assert f"write {array_id}:ended" in refused.json()["error"]["message"]
    worker.end(other)
    assert worker.start().id == anyway
    unknown = client.post("/jobs", json=make_job_body(after=["a1nosuch"]))
    assert (unknown.status_code, unknown.json()["error"]["field"]) == (400, "after")
