"""The rules of the original protocol that a client breaks without, one by one."""

import base64
import json
import threading
import time

import pytest
from support.live_service import make_zip

from core.security import credentials
from core.security.encryption import Vault

NPM = {"ps_client_name": "paperspace-node"}
GRADIENT = {"ps_client_name": "gradient-cli"}


@pytest.fixture
def create(client):
    def create(**fields):
        answer = client.post("/jobs/createJob/", params={"machineType": "CPU", "command": "true"} | fields)
        assert answer.status_code == 200, answer.text
        return answer.json()

    return create


def error_of(answer):
    error = answer.json()["error"]
    assert error["status"] == answer.status_code
    return error


@pytest.mark.parametrize("prefix", ["", "/original"])
@pytest.mark.parametrize("slash", ["", "/"])
def test_every_path_is_there_with_and_without_a_slash_and_never_redirects(client, create, prefix, slash):
    job = create(project="p")
    for method, path, body in [
        ("GET", "/jobs/getJob", {"jobId": job["id"]}),
        ("POST", "/jobs/getPublicJob", {"jobId": job["id"]}),
        ("GET", "/jobs/getJobs", {}),
        ("GET", "/jobs/getJobList", {}),
        ("POST", "/jobs/createJob", {"command": "true"}),
        ("POST", f"/jobs/{job['id']}/stop", {}),
        ("GET", "/jobs/logs", {"jobId": job["id"]}),
        ("GET", "/jobs/artifactsList", {"jobId": job["id"]}),
        ("GET", "/jobs/artifactsListV2", {"jobId": job["id"]}),
        ("GET", "/jobs/artifactsGet", {"jobId": job["id"]}),
        ("POST", f"/jobs/{job['id']}/clone", {}),
        ("POST", f"/jobs/{job['id']}/artifactsDestroy", {}),
        ("POST", f"/jobs/{job['id']}/destroy", {}),
        ("GET", "/jobs/getClusterAvailableMachineTypes", {}),
        ("GET", "/vmTypes/getVmTypesByClusters", {}),
        ("GET", "/clusters/getClusters", {}),
        ("POST", "/projects", {"name": "q"}),
        ("GET", "/projects", {}),
        ("GET", "/teams/namespace", {}),
        ("GET", "/entityTags/getTags", {"entity": "project", "entityIds": job["projectId"]}),
        ("PUT", "/entityTags/updateTags", {"entity": "project", "entityId": job["projectId"], "tags": ["x"]}),
        ("GET", "/machines/getAvailability", {"machineType": "CPU"}),
    ]:
        answer = client.request(method, f"{prefix}{path}{slash}", json=body, headers=GRADIENT)
        assert answer.status_code in {200, 204}, (path, answer.text)


def test_parameters_come_in_the_query_as_json_and_as_json_of_a_get(client, create):
    job = create(project="p", name="one", ignoreFiles="x", workspace="/home/me", teamId="666")
    for options in ({"params": {"name": "one"}}, {"json": {"name": "one", "teamId": 666}}):
        assert [one["id"] for one in client.request("GET", "/jobs/getJobs", **options).json()] == [job["id"]]
    assert client.request("GET", "/jobs/getJobs", json={"name": "two"}).json() == []
    limited = client.get("/jobs/logs", params={"jobId": job["id"], "line": "0", "limit": "1x"})
    assert error_of(limited)["field"] == "limit"


def test_a_command_is_base64_from_one_client_alone(client):
    encoded = base64.b64encode("echo grüße".encode()).decode()
    for headers, command, expected in [
        (NPM, encoded, "echo grüße"),
        (GRADIENT, "date", "date"),
        ({}, encoded, encoded),
    ]:
        answer = client.post("/jobs/createJob", json={"command": command, "machineType": "CPU"}, headers=headers)
        assert answer.json()["entrypoint"] == expected
    refused = client.post("/jobs/createJob", json={"command": "no base64!"}, headers=NPM)
    assert (refused.status_code, error_of(refused)["field"]) == (400, "command")


@pytest.mark.parametrize("wish", [True, "true", "True", "1"])
@pytest.mark.parametrize("name", ["isPreemptible", "useDockerfile", "buildOnly"])
def test_what_is_requested_and_cannot_be_is_refused_by_name(client, name, wish):
    answer = client.post("/jobs/createJob", json={"command": "true", name: wish})
    assert (answer.status_code, error_of(answer)["field"]) == (400, name)
    for no in (False, "False", "", None):
        assert client.post("/jobs/createJob", json={"command": "true", name: no}).status_code == 200


def test_an_upload_is_known_by_its_name_and_not_by_its_type(client):
    answer = client.post(
        "/jobs/createJob/",
        params={"command": "true", "project": "p", "workspaceFileName": "workspace.zip"},
        files={"file": ("workspace.zip", make_zip(), "text/plain")},
    )
    job = answer.json()
    assert (answer.status_code, job["codeUploaded"], job["project"]) == (200, True, "p")
    missing = client.post("/jobs/createJob", json={"command": "true", "workspaceFileName": "workspace.zip"})
    assert error_of(missing)["field"] == "workspaceFileName"
    other = client.post("/jobs/createJob", params={"command": "true"}, files={"spec": ("a", b"{}", "text/plain")})
    assert "not a part of this form; it has 'file'" in error_of(other)["message"]
    assert client.post("/jobs/createJob", json={"command": "true", "workspaceFileName": "none"}).status_code == 200


def test_a_password_for_the_workspace_is_used_and_not_shown(client, worker, stores):
    job = client.post(
        "/jobs/createJob",
        json={
            "command": "true",
            "workspaceFileName": "https://host.example/repo.git",
            "workspaceUsername": "me@example.org",
            "workspacePassword": "s3cr3t/&",
        },
    ).json()
    assert job["workspaceUrl"] == "https://host.example/repo.git"
    row = worker.get(job["id"])
    assert row.spec.workspace == "https://host.example/repo.git"
    with stores.database.read() as session:
        assert credentials.git_login(session, Vault(stores.settings), row) == "me%40example.org:s3cr3t%2F%26"


def test_the_project_is_told_as_it_was_sent_and_both_kinds_of_name_are_too_many(client, create):
    assert create(project="Ünï 🚀")["project"] == "Ünï 🚀"
    both = client.post("/jobs/createJob", json={"command": "true", "project": "a", "projectId": "b"})
    assert error_of(both)["message"] == "Incompatible parameters: project and projectId cannot both be specified"
    assert both.status_code == 422


def test_errors_begin_with_the_original_words(client, anonymous_client):
    assert error_of(anonymous_client.get("/jobs/getJobs/"))["message"].startswith("Invalid API token")
    assert error_of(client.get("/jobs/getJob", params={"jobId": "jx"}))["message"].startswith("No such job")
    machine = client.post("/jobs/createJob", json={"command": "true", "machineType": "x"})
    assert (machine.status_code, error_of(machine)["message"][:20]) == (400, "Invalid machine type")
    project = client.post("/jobs/createJob", json={"command": "true", "projectId": "x"})
    assert (project.status_code, error_of(project)["message"][:17]) == (404, "Project not found")


def rows_of(client, job, **options):
    return client.get("/jobs/logs", params={"jobId": job["id"]} | options).json()


def test_the_end_of_a_log_is_a_row_without_gap_however_a_job_ends(client, create, worker, stores):
    job = create()
    running = worker.start()
    with stores.logs.open_writer(job["id"], 1) as log:
        log.append(b"one\nPSEOF\ntwo", 1_700_000_000_000)
    worker.end(running, exit_code=0)
    rows = rows_of(client, job)
    assert [(row["line"], row["message"]) for row in rows] == [(1, "one"), (2, "PSEOF "), (3, "two"), (4, "PSEOF")]
    assert all(row["jobId"] == job["id"] and row["timestamp"].endswith("Z") for row in rows)
    assert [row["line"] for row in rows_of(client, job, line=1, limit=2)] == [2, 3]
    assert rows_of(client, job, line=3)[0] | {"timestamp": ""} == {
        "jobId": job["id"], "line": 4, "timestamp": "", "message": "PSEOF",
    }  # fmt: skip
    cancelled = create()
    client.post(f"/jobs/{cancelled['id']}/stop")
    assert [row["message"] for row in rows_of(client, cancelled)] == ["PSEOF"]
    broken = create()
    worker.end(worker.start(), "launch_failed")
    assert [row["message"] for row in rows_of(client, broken)] == ["PSEOF"]
    assert client.get("/jobs/getJob", params={"jobId": broken["id"]}).json()["state"] == "Error"


def test_a_read_of_nothing_is_held_back_until_there_is_something(client, create, worker, stores):
    job = create()
    running = worker.start()
    answers = []
    began = time.monotonic()
    reading = threading.Thread(target=lambda: answers.append((rows_of(client, job), time.monotonic())))
    reading.start()
    time.sleep(0.5)  # what is held back has no other sign
    assert answers == []
    with stores.logs.open_writer(job["id"], 1) as log:
        log.append(b"first\n", 1_700_000_000_000)
    reading.join(60)
    [(rows, at)] = answers
    assert ([row["message"] for row in rows], at - began < 9) == (["first"], True)
    worker.end(running, exit_code=0)


def test_nothing_is_an_empty_list_after_a_while(client, create, monkeypatch):
    monkeypatch.setattr("service.original.long_poll.MAX_WAIT_SECONDS", 0.3)
    job = create()
    assert client.get("/jobs/logs", params={"jobId": job["id"]}).json() == []
    assert client.get("/jobs/getJob", params={"jobId": job["id"], "state": "Running"}).json()["state"] == "Pending"


def test_a_machine_taken_away_is_a_state_of_its_own(client, create, worker):
    job = create()
    worker.end(worker.start(), "preempted")
    shown = client.get("/jobs/getJob", params={"jobId": job["id"]}).json()
    assert (shown["state"], "preempted" in shown["jobError"]) == ("Preempted", True)
    assert [one["id"] for one in client.get("/jobs/getJobs", params={"state": "Preempted"}).json()] == [job["id"]]
    assert client.get("/jobs/getJobs", params={"state": "Error"}).json() == []


def test_jobs_are_found_by_tags_on_both_kinds_of_database(client, create):
    job = create()
    tags = ['grün & "gut"', "b"]
    body = {"entity": "job", "entityId": job["id"], "tags": tags}
    assert client.put("/entityTags/updateTags", json=body).status_code == 200
    shown = client.get("/entityTags/getTags", params={"entity": "job", "entityIds": job["id"]}).json()
    assert [one["tag"]["name"] for one in shown[job["id"]]] == tags
    for tag, found in [(tags[0], [job["id"]]), ("gut", [])]:
        listed = client.get("/jobs/getJobList/", params={"filter": "{}", "tagFilter[0]": tag}).json()["jobList"]
        assert [one["id"] for one in listed] == found
    refused = client.put("/entityTags/updateTags", json=body | {"tags": ["x" * 200]})
    assert (refused.status_code, error_of(refused)["field"]) == (400, "tags")


def test_the_filter_of_a_list_is_json(client, create):
    job = create(project="p")
    where = json.dumps({"filter": {"where": {"projectId": job["projectId"]}}})
    assert len(client.get("/jobs/getJobList", params={"filter": where}).json()["jobList"]) == 1
    for broken in ("{", "[]", '{"filter": 1}', '{"filter": {"where": {"projectId": 5}}}'):
        assert client.get("/jobs/getJobList", params={"filter": broken}).status_code in {400, 422}


def test_a_machine_type_is_busy_when_a_job_on_it_would_wait(client, create, worker):
    def busy():
        rows = client.get("/jobs/getClusterAvailableMachineTypes", params={"machineType": "cpu"}).json()
        return [row["isBusy"] for row in rows]

    assert busy() == [True]
    worker.register()  # one slot
    assert busy() == [False]
    create()
    worker.start()
    assert busy() == [True]
    assert client.get("/jobs/getClusterAvailableMachineTypes", params={"isBusy": "False"}).json() == []
