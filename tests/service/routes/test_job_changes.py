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
