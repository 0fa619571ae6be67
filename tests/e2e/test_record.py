"""The record: who did what from where on what, with which result, of everything that a job and a project meet."""

import json
import subprocess

import pytest
from support.deployment import SERVER_PROGRAM, wait_until

ADDRESS = "127.0.0.1"


@pytest.fixture(scope="module")
def keys(service):
    """The keys of two people without other rights, by name."""
    made = {name: service.request("POST", "/keys", json={"name": name}).json() for name in ("ada", "bob")}
    return {name: key["apiKey"] for name, key in made.items()}


def audit(service):
    command = [str(SERVER_PROGRAM), "audit", "--json"]
    done = subprocess.run(command, env=service.environment(), capture_output=True, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def rows(service, actor):
    """The actions of somebody: action, address, what on, more of it, and result."""
    fields = ("action", "address", "target", "detail", "result")
    return [tuple(row[field] for field in fields) for row in audit(service) if row["actor"] == actor]


def test_the_record_has_a_row_of_everything_that_was_done_and_refused(service, keys):
    ada, bob = ({"x-api-key": keys[name]} for name in ("ada", "bob"))
    body = {"machineType": "CPU", "command": "sleep 600", "project": "red"}
    project = service.request("POST", "/projects", json={"name": "red"}, headers=ada).json()["id"]
    service.request("PUT", f"/projects/{project}/secrets/TOKEN", json={"value": "s3cr3t"}, headers=ada)
    job = service.request("POST", "/jobs", json={**body, "envVars": {"T": "secret:TOKEN"}}, headers=ada).json()["id"]
    wait_until(lambda: service.job(job)["state"] == "Running", "the job")
    service.cli("jobs", "exec", job, "--apiKey", keys["ada"], "--", "true")
    assert service.request("POST", f"/jobs/{job}/stop", headers=bob).status_code == 403
    service.cli("jobs", "exec", job, "--apiKey", keys["bob"], "--", "true", code=None)
    service.request("POST", f"/jobs/{job}/stop", headers=ada)
    service.wait_ended(job)
    service.request("DELETE", f"/jobs/{job}", headers=ada)
    service.request("GET", "/jobs", headers={"x-api-key": "gj_wrong"})
    expected = [
        ("project_created", ADDRESS, "red", None, "done"),
        ("secret_set", ADDRESS, f"TOKEN of project {project}", None, "done"),
        ("submitted", ADDRESS, job, None, "done"),
        ("secrets_used", None, job, f"TOKEN of project {project}", "done"),
        ("exec_opened", ADDRESS, job, None, "done"),
        ("exec_closed", ADDRESS, job, None, "done"),
        ("stop_requested", ADDRESS, job, None, "done"),
        ("deleted", ADDRESS, job, None, "done"),
    ]
    done = [
        row if row[0] not in {"exec_opened", "exec_closed"} else (*row[:3], None, row[4])
        for row in rows(service, "ada")
    ]
    assert done == expected
    refusals = [
        ("refused", ADDRESS, f"POST /jobs/{job}/stop", None, "OwnerOnly"),
        ("refused", ADDRESS, f"WEBSOCKET /jobs/{job}/exec", None, "OwnerOnly"),
    ]
    wait_until(lambda: rows(service, "bob") == refusals, "the rows of what was refused")
    wait_until(lambda: ("refused", ADDRESS, "", None, "Unauthorized") in rows(service, None), "the wrong key")
    made = [row for row in audit(service) if row["action"] == "key_created" and "(bob)" in row["target"]]
    assert [(row["address"], row["result"]) for row in made] == [(ADDRESS, "done")]
    assert "s3cr3t" not in json.dumps(audit(service))


def test_the_record_has_the_reads_of_closed_projects_once(service, keys):
    ada, bob = ({"x-api-key": keys[name]} for name in ("ada", "bob"))
    body = {"machineType": "CPU", "command": "true"}
    closed, opened = (
        service.request("POST", "/jobs", json={**body, "project": name}, headers=bob).json()
        for name in ("closed", "opened")
    )
    service.request("PATCH", f"/projects/{closed['projectId']}", json={"closed": True}, headers=bob)
    member = bob["x-api-key"].split("_")[1]
    for job in (closed, opened, closed):
        assert service.request("GET", f"/jobs/{job['id']}", headers=bob).status_code == 200
    assert service.request("GET", f"/jobs/{closed['id']}", headers=ada).status_code == 404
    reads = [("read", ADDRESS, f"job {closed['id']}", None, "done")]

    def of_jobs():
        return [row for row in rows(service, "bob") if row[0] == "read" and row[2].startswith("job")]

    wait_until(of_jobs, "the rows of reads")
    assert of_jobs() == reads
    assert not [row for row in rows(service, "ada") if row[0] == "read"]
    page = service.request("GET", f"/ui/settings/record?key={member}").text
    assert f"job {closed['id']}" in page
    assert "red" not in page, "of another key"
    assert service.request("GET", "/ui/settings/record", headers=bob).status_code == 403
