"""Clones with changes, tags of a job, and deleted projects over HTTP."""

import pytest
from support.live_service import make_job_body


@pytest.fixture
def original(client):
    body = make_job_body(name="first", envVars={"A": "1", "B": "2"}, tags=["x"], timeLimit=60)
    return client.post("/jobs", json=body).json()["id"]


def error(answer):
    return answer.status_code, answer.json()["error"]["field"]


def test_a_clone_takes_changes_and_keeps_the_rest(client, original):
    changes = {"machineType": "v100", "command": "python other.py", "envVars": {"B": "3", "C": "4"}, "name": "second"}
    answer = client.post(f"/jobs/{original}/clone", json=changes)
    assert answer.status_code == 201, answer.text
    clone = answer.json()
    assert (clone["machineType"], clone["command"], clone["name"]) == ("V100", "python other.py", "second")
    assert clone["envVars"] == {"A": "1", "B": "3", "C": "4"}
    assert (clone["tags"], clone["timeLimit"], clone["parentJobId"]) == (["x"], 60, original)
    more = client.post(f"/jobs/{original}/clone", json={"tags": ["y"], "ports": "8080"}).json()
    assert (more["tags"], more["ports"][0]["internal"]) == (["y"], 8080)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"machineType": "nosuch"}, (400, "machineType")),
        ({"timeLimit": 0}, (400, "timeLimit")),
        ({"workspaceSha256": "0" * 64}, (400, "workspaceSha256")),
        ({"registryUsername": "alice"}, (400, "registryUsername")),
        ({"envVars": {"A": "secret:nosuch"}}, (400, "envVars.A")),
        ({"nosuch": 1}, (422, "nosuch")),
    ],
)
def test_a_change_that_is_not_possible_is_refused(client, original, changes, expected):
    assert error(client.post(f"/jobs/{original}/clone", json=changes)) == expected
    assert len(client.get("/jobs").json()["jobs"]) == 1


def test_an_idempotency_key_belongs_to_one_set_of_changes(client, original):
    key = {"Idempotency-Key": "k"}
    asked = [client.post(f"/jobs/{original}/clone", json={"command": c}, headers=key).status_code for c in "aab"]
    assert asked == [201, 200, 422]


def test_a_project_is_deleted_once_its_jobs_have_ended(client, original):
    project = client.get(f"/jobs/{original}").json()["projectId"]
    refused = client.delete(f"/projects/{project}")
    assert error(refused) == (400, "projectId")
    assert "1 jobs of this project have not ended" in refused.json()["error"]["message"]
    client.post(f"/jobs/{original}/stop")
    assert client.delete(f"/projects/{project}").status_code == 204
    assert client.get("/projects").json()["projects"] == []
    assert client.get(f"/jobs/{original}").status_code == 404
    assert client.delete(f"/projects/{project}").status_code == 404


def test_a_dry_run_tells_that_no_worker_is_large_enough(client, worker):
    worker.register()
    with_cpus = [
        client.post("/jobs", params={"dryRun": "true"}, json=make_job_body(cpus=cpus, waitAnyway=True)).json()["notes"]
        for cpus in (1, 1000)
    ]
    assert ["1,000 CPUs" in " ".join(notes) for notes in with_cpus] == [False, True]


def test_a_job_is_renamed_tagged_and_annotated_also_after_its_end(client, original):
    client.post(f"/jobs/{original}/stop")
    wanted = {"name": "best so far", "note": "  lr too high?\r\n\n\ttry 0.1 ", "tags": ["y", "z"], "add": ["a,b"]}
    changed = client.patch(f"/jobs/{original}", json=wanted)
    assert changed.status_code == 200, changed.text
    expected = ("best so far", "lr too high?\n\n\ttry 0.1", ["y", "z", "a,b"])
    for job in (changed.json(), client.get(f"/jobs/{original}").json(), client.get("/jobs").json()["jobs"][0]):
        assert (job["name"], job["note"], job["tags"]) == expected
    events = client.get(f"/jobs/{original}/events").json()["events"][-3:]
    assert [event["kind"] for event in events] == ["renamed", "tagged", "annotated"]
    assert [event["message"] for event in events] == ["best so far", "y, z, a,b", expected[1]]
    assert all(event["actor"] for event in events)
    clone = client.post(f"/jobs/{original}/clone").json()
    assert (clone["name"], clone["note"]) == ("best so far", None)
    for query in ({"q": '"LR TOO"'}, {"query": "LR TOO"}):
        assert [job["id"] for job in client.get("/jobs", params=query).json()["jobs"]] == [original]
    cleared = client.patch(f"/jobs/{original}", json={"name": None, "note": " ", "tags": []}).json()
    assert (cleared["note"], cleared["tags"]) == (None, [])
    assert cleared["name"] != "best so far"
    before = len(client.get(f"/jobs/{original}/events").json()["events"])
    assert client.patch(f"/jobs/{original}", json={"note": None}).status_code == 200
    assert len(client.get(f"/jobs/{original}/events").json()["events"]) == before


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"name": ""}, (400, "name")),
        ({"name": "two\nlines"}, (400, "name")),
        ({"name": "n" * 201}, (400, "name")),
        ({"note": "n" * 2001}, (400, "note")),
        ({"note": "escape \x1b[2J"}, (400, "note")),
        ({"note": 5}, (422, "note")),
        ({"tags": ["t" * 101]}, (400, "tags")),
        ({"tags": None}, (422, "tags")),
        ({"note": "good", "tags": [" "]}, (400, "tags")),
        ({"command": "true"}, (422, "command")),
    ],
)
def test_a_wrong_edit_is_refused_and_changes_nothing(client, original, change, expected):
    before = client.get(f"/jobs/{original}").json()
    assert error(client.patch(f"/jobs/{original}", json=change)) == expected
    assert error(client.patch(f"/jobs/{original}", json={"name": "other"} | change)) == expected
    after = client.get(f"/jobs/{original}").json()
    assert [after[name] for name in ("name", "note", "tags")] == [before[name] for name in ("name", "note", "tags")]


def test_a_member_of_an_array_keeps_the_name_of_the_array(client):
    array = client.post("/jobs", json=make_job_body(name="grid", array="0-1")).json()["arrayId"]
    member = client.get("/jobs", params={"array": f"{array}_1"}).json()["jobs"][0]["id"]
    assert error(client.patch(f"/jobs/{member}", json={"name": "best", "note": "best"})) == (400, "name")
    changed = client.patch(f"/jobs/{member}", json={"name": "grid[1]", "note": "best"}).json()
    assert (changed["name"], changed["note"]) == ("grid[1]", "best")
