"""Who may ask: every route needs a key, a revoked one ends, and a browser's session may only read."""

import time

import pytest
from serving import a_job

from core import keys
from service.sessions import SESSION_SECONDS, Sessions, load_secret

OPEN = {"/health", "/readiness"}
BY_OTHER_MEANS = {"/original/users/login", "/original/apiTokens/createPublic", "/_s3/{bucket}", "/_s3/{bucket}/{key}"}
"""A password, or a token of S3's protocol: tests/service/original."""


def routes(app):
    for path, methods in app.openapi()["paths"].items():
        for method in methods:
            if path not in OPEN | BY_OTHER_MEANS:
                yield (
                    method.upper(),
                    path.replace("{job_id}", "j1")
                    .replace("{project_id}", "p1")
                    .replace("{path}", "x")
                    .replace("{sha256}", "0" * 64),
                )


def test_every_route_refuses_whoever_has_no_key(app, stranger, secret, database):
    asked = list(routes(app))
    assert len(asked) > 15
    with database.write() as session:
        gone, revoked = keys.create(session, "gone")
        keys.revoke(session, gone.id)
    bad = (
        {"x-api-key": revoked},
        {"Authorization": f"Bearer {revoked}"},
        {},
        {"x-api-key": "nonsense"},
        {"x-api-key": secret[:-1] + ("a" if secret[-1] != "a" else "b")},
        {"Authorization": "Bearer nonsense"},
        {"Authorization": "Basic dTpw"},
        {"Cookie": "gradient_session=k.99999999999.forged"},
    )
    for method, path in asked:
        for headers in bad:
            # What else is wrong with a request is nobody's business who has no key.
            answer = stranger.request(method, path, headers=headers, params={"limit": "x"}, content=b"{")
            assert answer.status_code == 401, (method, path, headers)
            error = answer.json()["error"]
            assert error["name"] == "Unauthorized"
            assert answer.headers["www-authenticate"] == "Bearer"


def test_nothing_else_is_open(app, stranger):
    assert set(app.openapi()["paths"]) >= OPEN
    for path in OPEN:
        assert stranger.get(path).status_code == 200


def test_a_key_goes_in_either_header(stranger, secret):
    for headers in ({"x-api-key": secret}, {"X-API-Key": secret}, {"Authorization": f"Bearer {secret}"}):
        assert stranger.get("/jobs", headers=headers).status_code == 200


def test_a_wrong_key_with_a_large_upload_gets_its_message(stranger):
    for _ in range(3):
        answer = stranger.post(
            "/jobs", files={"workspace": ("w.zip", bytes(15 * 1024**2))}, headers={"x-api-key": "no"}
        )
        assert (answer.status_code, answer.json()["error"]["name"]) == (401, "Unauthorized")


def test_a_revoked_key_ends_within_seconds(client, database, secret, monkeypatch):
    assert client.get("/jobs").status_code == 200
    with database.write() as session:
        keys.revoke(session, secret.split("_")[1])
    later = time.monotonic() + keys.TRUSTED_SECONDS
    monkeypatch.setattr("core.keys.time.monotonic", lambda: later)
    answer = client.get("/jobs")
    assert answer.status_code == 401
    assert "revoked" in answer.json()["error"]["message"]


def test_the_submitter_is_the_key(client, worker, secret):
    job_id = client.post("/jobs", json=a_job()).json()["id"]
    assert worker.get(job_id).submitted_by == secret.split("_")[1]


def test_a_browser_session_reads_but_does_not_write(stranger, stores, secret, database, monkeypatch):
    key_id = secret.split("_")[1]
    cookie = {"Cookie": f"gradient_session={stores.sessions.issue(key_id)}"}
    assert stranger.get("/jobs", headers=cookie).status_code == 200
    assert stranger.post("/jobs", json=a_job(), headers=cookie).status_code == 401
    assert stranger.post("/projects", json={"name": "x"}, headers=cookie).status_code == 401
    with database.write() as session:
        keys.revoke(session, key_id)
    later = time.monotonic() + keys.TRUSTED_SECONDS
    monkeypatch.setattr("core.keys.time.monotonic", lambda: later)
    assert stranger.get("/jobs", headers=cookie).status_code == 401


def test_cookies_are_signed_and_expire(monkeypatch):
    sessions = Sessions(b"a" * 32)
    cookie = sessions.issue("k1")
    assert sessions.read(cookie) == "k1"
    assert Sessions(b"b" * 32).read(cookie) is None
    _, expires, signature = cookie.split(".")
    for forged in (f"k2.{expires}.{signature}", f"k1.{int(expires) + 1}.{signature}", "", "a.b", "ü.1.x", cookie + "x"):
        assert sessions.read(forged) is None
    after = time.time() + SESSION_SECONDS + 1
    monkeypatch.setattr("service.sessions.time.time", lambda: after)
    assert sessions.read(cookie) is None


def test_a_ticket_opens_one_session(monkeypatch):
    sessions = Sessions(b"a" * 32)
    ticket = sessions.issue_ticket("k1")
    assert sessions.redeem_ticket("other") is None
    assert sessions.redeem_ticket(ticket) == "k1"
    assert sessions.redeem_ticket(ticket) is None
    late = sessions.issue_ticket("k1")
    after = time.monotonic() + 601
    monkeypatch.setattr("service.sessions.time.monotonic", lambda: after)
    assert sessions.redeem_ticket(late) is None


def test_the_secret_is_made_once_for_its_owner_alone(tmp_path):
    path = tmp_path / "new" / "session.key"
    secret = load_secret(path)
    assert len(secret) == 32
    assert load_secret(path) == secret
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_the_key_never_comes_in_the_query(stranger, secret, method):
    assert stranger.request(method, "/jobs", params={"x-api-key": secret, "apiKey": secret}).status_code == 401
