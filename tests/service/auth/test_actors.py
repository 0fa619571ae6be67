"""The actor: the key in each line of the request log, in the events of jobs and in the record of all other changes."""

import io
import json
import logging

import pytest
from support.deployment import wait_until
from support.live_service import make_job_body

from core.monitoring.logging import _JsonFormatter
from gradient_server import main as server_command
from service.auth.session_cookie import cookie_name


@pytest.fixture
def request_log():
    """The lines of the request log, as a server writes them."""
    written = io.StringIO()
    handler, logger = logging.StreamHandler(written), logging.getLogger("service.http.middleware")
    handler.setFormatter(_JsonFormatter())
    before = logger.level
    logger.setLevel(logging.DEBUG)
    logger.addHandler(handler)
    yield lambda: [json.loads(line) for line in written.getvalue().splitlines()]
    logger.removeHandler(handler)
    logger.setLevel(before)


def key_id(client):
    return client.headers["x-api-key"].split("_")[1]


def test_every_line_of_the_request_log_has_the_key(client, anonymous_client, stores, bob, request_log):
    job = client.post("/jobs", json=make_job_body()).json()["id"]
    client.get(f"/jobs/{job}", headers={"x-request-id": "mine"})
    client.post(f"/jobs/{job}/stop", headers=bob[1])
    client.patch(f"/jobs/{job}/tags", json={"add": 1})
    cookie = f"{cookie_name(stores.settings)}={stores.sessions.open(bob[0])}"
    session = {"Cookie": cookie, "Origin": str(client.base_url)}
    anonymous_client.post("/ui/settings/secrets", headers=session, data={"name": "X", "value": "y"})
    anonymous_client.post(f"/jobs/{job}/stop")
    wait_until(lambda: len(request_log()) == 6, "the line of the last request, which follows its answer")
    found = [(line["method"], line["status"], line.get("key_id")) for line in request_log()]
    own, bobs = key_id(client), bob[0]
    assert found == [
        ("POST", 201, own),
        ("GET", 200, own),
        ("POST", 403, bobs),
        ("PATCH", 422, own),
        ("POST", 403, bobs),
        ("POST", 401, None),
    ]
    assert request_log()[1]["request_id"] == "mine"


def test_every_event_that_a_person_causes_says_who_did(client, settings, worker, bob):
    settings.sign_in.administrators.append(bob[0])
    worker.register()
    running, waiting, gone = (client.post("/jobs", json=make_job_body(name=name)).json()["id"] for name in "abc")
    worker.start()
    client.post(f"/jobs/{running}/stop", headers=bob[1])
    client.post("/jobs/actions", json={"action": "stop", "ids": [waiting]}, headers=bob[1])
    client.patch(f"/jobs/{running}/tags", json={"add": ["x"]}, headers=bob[1])
    client.delete(f"/jobs/{gone}", headers=bob[1])
    copy = client.post(f"/jobs/{running}/clone", headers=bob[1]).json()["id"]

    def actors(job_id):
        events = client.get(f"/jobs/{job_id}/events").json()["events"]
        return [(one["kind"], one["actor"], one["actorKey"]) for one in events]

    own, bobs = ("tests", key_id(client)), ("bob", bob[0])
    assert actors(running) == [
        ("submitted", *own),
        ("claimed", None, None),
        ("started", None, None),
        ("stop_requested", *bobs),
        ("tagged", *bobs),
    ]
    assert actors(waiting) == [("submitted", *own), ("finished", *bobs)]
    assert actors(copy)[0] == ("submitted", *bobs)
    page = client.get(f"/ui/jobs/{running}/events", headers={"Accept": "text/html"}).text
    assert f'title="API key {bob[0]}">by bob</span>' in page


def test_every_other_change_is_recorded_and_exported_with_its_actor(client, settings, worker, bob, capsys, monkeypatch):
    settings.sign_in.administrators.append(bob[0])
    worker.register()
    job = client.post("/jobs", json=make_job_body(project="p")).json()
    project = f"/projects/{job['projectId']}"
    client.post("/workers/w/drain", headers=bob[1])
    client.put("/secrets/TOKEN", json={"value": "s3cr3t-value"}, headers=bob[1])
    client.put(f"{project}/secrets/TOKEN", json={"value": "s3cr3t-value"}, headers=bob[1])
    client.delete("/secrets/TOKEN", headers=bob[1])
    client.put("/registries/r.example", json={"username": "u", "password": "s3cr3t-value"}, headers=bob[1])
    client.delete("/registries/r.example", headers=bob[1])
    client.patch(project, json={"maxRunning": 3}, headers=bob[1])
    client.post("/jobs/actions", json={"action": "stop", "ids": [job["id"]]}, headers=bob[1])
    client.delete(project, headers=bob[1])
    made = client.post("/keys", json={"name": "carol"}, headers=bob[1]).json()["id"]
    client.delete(f"/keys/{made}", headers=bob[1])
    monkeypatch.setenv("GRADIENT_HOME", str(settings.home))
    assert server_command.main(["audit", "--json"]) == 0
    text = capsys.readouterr().out
    assert "s3cr3t-value" not in text
    actions = [json.loads(line) for line in text.splitlines()]
    done = {(one["actor"], one["action"], one["target"]) for one in actions if one["actorKey"] == bob[0]}
    assert done == {
        ("bob", "worker_drained", "w"),
        ("bob", "secret_set", "TOKEN of all projects"),
        ("bob", "secret_set", f"TOKEN of project {job['projectId']}"),
        ("bob", "secret_deleted", "TOKEN of all projects"),
        ("bob", "registry_set", "r.example of all projects"),
        ("bob", "registry_deleted", "r.example of all projects"),
        ("bob", "project_changed", "p: maxRunning 3"),
        ("bob", "finished", job["id"]),
        ("bob", "deleted", job["id"]),
        ("bob", "project_deleted", f"p ({job['projectId']})"),
        ("bob", "key_created", f"{made} (carol)"),
        ("bob", "key_revoked", f"{made} (carol)"),
    }
    assert ("tests", "submitted", job["id"]) in {(one["actor"], one["action"], one["target"]) for one in actions}
    assert server_command.main(["audit"]) == 0
    assert f"bob ({bob[0]})" in capsys.readouterr().out
