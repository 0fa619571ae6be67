"""Errors: every class has a status, and everything that goes wrong has the one shape."""

import re

import pytest
from support.live_service import make_job_body

from core import errors
from service.http.errors import STATUS_BY_ERROR


def tree(cls):
    yield cls
    for below in cls.__subclasses__():
        yield from tree(below)


def test_every_error_has_a_status_of_its_own():
    defined = {cls for cls in tree(errors.GradientError) if cls.__module__ == errors.__name__}
    assert set(STATUS_BY_ERROR) == defined
    assert all(400 <= status <= 599 for status in STATUS_BY_ERROR.values())


def shape_of(answer):
    body = answer.json()
    assert set(body) == {"error"}
    assert {"name", "status", "message"} <= set(body["error"]) <= {"name", "status", "message", "field"}
    assert body["error"]["status"] == answer.status_code
    assert answer.headers["content-type"] == "application/json"
    return body["error"]


@pytest.mark.parametrize(
    ("method", "path", "status", "name"),
    [
        ("GET", "/nothing", 404, "NotFound"),
        ("GET", "/jobs/", 404, "NotFound"),
        ("PUT", "/jobs", 405, "MethodNotAllowed"),
        ("GET", "/jobs/none", 404, "JobNotFound"),
        ("GET", "/jobs?limit=0", 422, "ValidationError"),
        ("GET", f"/workspaces/{'0' * 64}", 404, "WorkspaceNotFound"),
        ("GET", "/workspaces/zz", 400, "WorkspaceInvalid"),
        ("POST", "/projects", 422, "ValidationError"),
    ],
)
def test_every_error_has_one_shape(client, method, path, status, name):
    answer = client.request(method, path)
    error = shape_of(answer)
    assert (answer.status_code, error["name"]) == (status, name)
    assert "detail" not in answer.text


def test_a_path_with_another_method_says_which(client):
    answer = client.put("/jobs")
    assert set(answer.headers["allow"].split(", ")) <= {"GET", "POST"}
    assert "PUT /jobs" in shape_of(answer)["message"]


def test_a_few_problems_are_told_at_once(client):
    spec = make_job_body(timeLimit="x", priority="y", cpus="z", maxAttempts="w", tags="t")
    message = shape_of(client.post("/jobs", json=spec))["message"]
    assert "timeLimit" in message
    assert "2 more" in message


def test_the_unexpected_is_an_incident_and_no_stack_trace(client, monkeypatch, caplog):
    def fail(*_args, **_kwargs):
        raise RuntimeError("secret-internal-detail")

    monkeypatch.setattr("core.jobs.queries.page", fail)
    answer = client.get("/jobs")
    error = shape_of(answer)
    assert (answer.status_code, error["name"]) == (500, "InternalError")
    assert "secret-internal-detail" not in answer.text
    assert "Traceback" not in answer.text
    incident = re.search(r"under the id ([0-9a-f]{8})\.", error["message"])[1]
    logged = [record for record in caplog.records if getattr(record, "incident", "") == incident]
    assert len(logged) == 1
    assert "secret-internal-detail" in str(logged[0].exc_info[1])
    assert answer.headers["x-request-id"]
    assert answer.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("unavailable", [errors.StoreUnavailable("away"), errors.SchemaMismatch("old")])
def test_a_store_that_is_away_says_when_to_come_back(client, monkeypatch, unavailable):
    def fail(*_args, **_kwargs):
        raise unavailable

    monkeypatch.setattr("core.jobs.queries.page", fail)
    answer = client.get("/jobs")
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "2")
    assert shape_of(answer)["name"] == type(unavailable).__name__


def test_health_needs_no_key_and_readiness_tells_what_is_wrong(anonymous_client, stores, monkeypatch):
    assert anonymous_client.get("/health").json()["status"] == "ok"
    assert anonymous_client.get("/readiness").json() == {"status": "ok", "checks": {"database": "ok", "storage": "ok"}}

    def fail():
        raise errors.StoreUnavailable("The database is away.")

    monkeypatch.setattr(stores.database, "ping", fail)
    answer = anonymous_client.get("/readiness")
    assert answer.status_code == 503
    assert answer.json()["checks"] == {"database": "The database is away.", "storage": "ok"}
