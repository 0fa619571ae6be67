"""The route of plain submissions answers as the general one does, which gets what names a charset, too."""

import httpx
import pytest
from support.deployment import EMPTY_SSL_CONTEXT
from support.live_service import make_job_body

import service.routes.jobs
from core.security import api_keys

PLAIN, GENERAL = "application/json", "application/json; charset=utf-8"
GOOD = {"json": make_job_body(name="one")}
REQUESTS = {
    "a job": GOOD,
    "a key that is not known": GOOD | {"headers": {"x-api-key": "unknown"}},
    "a key that was revoked": GOOD | {"headers": {"x-api-key": "revoked"}},
    "a page of another site": GOOD | {"headers": {"origin": "http://other.example"}},
    "an empty Idempotency-Key": GOOD | {"headers": {"idempotency-key": ""}},
    "an Idempotency-Key with a space": GOOD | {"headers": {"idempotency-key": "a b"}},
    "a request id": GOOD | {"headers": {"x-request-id": "mine.1"}},
    "an answer in gzip": GOOD | {"headers": {"accept-encoding": "gzip"}},
    "no body": {"content": b""},
    "text": {"content": b"{"},
    "a list": {"content": b"[]"},
    "another encoding": {"content": '{"command": "true"}'.encode("utf-16")},
    "bytes that are not UTF-8": {"content": b'{"command": "\xff"}'},
    "a surrogate": {"content": b'{"command": "\\ud800"}'},
    "brackets": {"content": b"[" * 60_000},
    "too much": {"content": b"[" + b" " * 3_000_000},
    "an unknown option": {"json": {"commando": "true"}},
    "an unknown machine type": {"json": make_job_body(machineType="none")},
    "an unknown project": {"json": make_job_body(projectId="none")},
    "an unknown workspace": {"json": make_job_body(workspaceSha256="0" * 64)},
    "an unknown secret": {"json": make_job_body(envVars={"TOKEN": "secret:NONE"})},
}
OF_ONE_JOB = {"id", "createdAt", "url"}
OF_ONE_ANSWER = {"date", "x-request-id", "content-length"}


def comparable(answer: httpx.Response):
    body = {name: value for name, value in answer.json().items() if name not in OF_ONE_JOB}
    return answer.status_code, {name: answer.headers[name] for name in answer.headers.keys() - OF_ONE_ANSWER}, body


@pytest.fixture
def revoked(database):
    with database.write() as session:
        key, secret = api_keys.create(session, "revoked")
        api_keys.revoke(session, key.id)
    return secret


@pytest.mark.parametrize("name", REQUESTS)
def test_both_routes_answer_alike(live_server, revoked, monkeypatch, name):
    served = []
    handle = service.routes.jobs.PlainSubmissionRoute.handle

    async def spy(self, *args):
        served.append(self)
        await handle(self, *args)

    monkeypatch.setattr(service.routes.jobs.PlainSubmissionRoute, "handle", spy)
    request = dict(REQUESTS[name])
    headers = {"x-api-key": live_server.api_key} | request.pop("headers", {})
    headers["x-api-key"] = revoked if headers["x-api-key"] == "revoked" else headers["x-api-key"]
    with httpx.Client(base_url=live_server.url, timeout=30, verify=EMPTY_SSL_CONTEXT) as client:
        plain, general = (
            client.post("/jobs", headers=headers | {"content-type": kind}, **request) for kind in (PLAIN, GENERAL)
        )
    assert comparable(plain) == comparable(general)
    assert ("x-request-id" in plain.headers) == ("x-request-id" in general.headers)
    if "x-request-id" in headers:
        assert plain.headers["x-request-id"] == headers["x-request-id"]
    assert len(served) == ("origin" not in headers), "only one of them went the short way"
