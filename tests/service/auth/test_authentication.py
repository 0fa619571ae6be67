"""Authentication: a revoked key ends, with everything issued on it; a browser's session may only read."""

import hashlib
import time
from types import SimpleNamespace

import pytest
from sqlalchemy import select, update
from support.live_service import make_job_body

from core.db.database import now
from core.db.models.credentials import BrowserSession, OneTimeToken
from core.errors import SecretUnreadable
from core.security import api_keys, one_time_tokens
from core.security.one_time_tokens import Purpose
from core.storage.prune import prune
from service.auth.signing import Signer, SigningKeys


def test_a_wrong_key_with_a_large_upload_gets_its_message(anonymous_client):
    for path in ("/jobs", "/jobs", "/jobs/createJob"):
        content = {"workspace": ("w.zip", bytes(15 * 1024**2), "application/zip")}
        answer = anonymous_client.post(path, files=content, headers={"x-api-key": "no"})
        assert (answer.status_code, answer.json()["error"]["name"]) == (401, "Unauthorized")


def test_a_browser_session_reads_but_does_not_write(anonymous_client, stores, api_key, database, monkeypatch):
    key_id = api_key.split("_")[1]
    cookie = {"Cookie": f"gradient_session_8780={stores.sessions.open(key_id)}"}
    assert anonymous_client.get("/jobs", headers=cookie).status_code == 200
    assert anonymous_client.post("/jobs", json=make_job_body(), headers=cookie).status_code == 401
    assert anonymous_client.post("/projects", json={"name": "x"}, headers=cookie).status_code == 401
    with database.write() as session:
        api_keys.revoke(session, key_id)
    later = time.monotonic() + api_keys.CACHE_SECONDS
    monkeypatch.setattr("core.security.row_cache.time", SimpleNamespace(monotonic=lambda: later))
    assert anonymous_client.get("/jobs", headers=cookie).status_code == 401


def test_sessions_that_nobody_may_use_any_more_are_removed(stores, database, api_key):
    key_id = api_key.split("_")[1]
    for change in ({"expires_at": now(-1)}, {"last_used_at": now(-8 * 86_400)}, {}):
        token = stores.sessions.open(key_id)
        digest = hashlib.sha256(token.encode()).digest()
        with database.write() as session:
            if change:
                session.execute(update(BrowserSession).where(BrowserSession.sha256 == digest).values(change))
    with database.write() as session:
        one_time_tokens.issue(session, Purpose.LOGIN, "u1")
        session.execute(update(OneTimeToken).values(expires_at=now(-1)))
    prune(stores)
    with database.read() as session:
        assert [row.sha256 for row in session.scalars(select(BrowserSession))] == [digest]
        assert session.scalars(select(OneTimeToken)).all() == []


def test_no_token_is_stored_as_it_is(stores, database, api_key):
    token = stores.sessions.open(api_key.split("_")[1])
    with database.write() as session:
        ticket = one_time_tokens.issue(session, Purpose.TICKET, api_key.split("_")[1])
    with database.read() as session:
        rows = [*session.scalars(select(BrowserSession)), *session.scalars(select(OneTimeToken))]
        stored = repr([vars(row) for row in rows])
    assert len(rows) == 2
    assert token not in stored
    assert ticket not in stored


def test_a_ticket_is_good_for_ten_minutes_and_for_nothing_else(database):
    with database.write() as session:
        ticket, late = (
            one_time_tokens.issue(session, Purpose.TICKET, "k1"),
            one_time_tokens.issue(session, Purpose.TICKET, "k1"),
        )
        digest = hashlib.sha256(late.encode()).digest()
        session.execute(update(OneTimeToken).where(OneTimeToken.sha256 == digest).values(expires_at=now(-1)))
    for purpose, token in ((Purpose.TICKET, "other"), (Purpose.LOGIN, ticket), (Purpose.TICKET, late)):
        assert one_time_tokens.redeem(database, purpose, token, lambda _, subject: subject) is None
    assert one_time_tokens.redeem(database, Purpose.TICKET, ticket, lambda _, subject: subject) == "k1"
    assert one_time_tokens.redeem(database, Purpose.TICKET, ticket, lambda _, subject: subject) is None


def test_a_key_has_a_limited_number_of_sessions(database, stores, api_key, monkeypatch):
    monkeypatch.setattr("core.security.sessions.MAX_PER_KEY", 3, raising=False)
    key_id = api_key.split("_")[1]
    with database.write() as session:
        other, _ = api_keys.create(session, "other")
    others = [stores.sessions.open(other.id) for _ in range(3)]
    tokens = [stores.sessions.open(key_id) for _ in range(3)]
    with database.write() as session:  # the first one is in use, the second one is not
        for number, token in enumerate(tokens):
            own = BrowserSession.sha256 == hashlib.sha256(token.encode()).digest()
            session.execute(update(BrowserSession).where(own).values(last_used_at=now(-60 * (number or 0.1))))
    tokens += [stores.sessions.open(key_id), stores.sessions.open(key_id)]
    with database.read() as session:
        kept = {row.sha256 for row in session.scalars(select(BrowserSession))}
    assert [hashlib.sha256(token.encode()).digest() in kept for token in tokens] == [True, False, False, True, True]
    assert all(hashlib.sha256(token.encode()).digest() in kept for token in others)


def test_the_signing_key_is_made_once_for_its_owner_alone(tmp_path):
    path = tmp_path / "new" / "session.key"
    [key] = SigningKeys(path).all()
    assert len(key) == 32
    assert SigningKeys(path).all() == (key,)
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(path.parent.iterdir()) == [path]


def test_a_new_signing_key_signs_and_the_one_before_it_verifies(tmp_path, stores, api_key):
    key_id = api_key.split("_")[1]
    path = tmp_path / "session.key"
    signer, elsewhere = Signer(SigningKeys(path), stores.keys), SigningKeys(path)
    first = signer.sign("purpose", "text", key_id)
    elsewhere.rotate()
    second = signer.sign("purpose", "text", key_id)
    assert [signer.key_id("purpose", "text", one, 60) is not None for one in (first, second)] == [True, True]
    elsewhere.rotate()
    assert [signer.key_id("purpose", "text", one, 60) is not None for one in (first, second)] == [False, True]
    elsewhere.rotate(forget=True)
    assert not signer.key_id("purpose", "text", second, 60)
    assert path.stat().st_mode & 0o777 == 0o600
    path.write_bytes(b"short")
    with pytest.raises(SecretUnreadable, match="Delete the file"):
        signer.sign("purpose", "text", key_id)


def test_a_stamp_is_for_one_purpose_text_and_key_and_ends_with_the_key(tmp_path, stores, database, api_key):
    with database.write() as session:
        other, _ = api_keys.create(session, "other")
    key_id = api_key.split("_")[1]
    signer = Signer(SigningKeys(tmp_path / "session.key"), stores.keys)
    stamp = signer.sign("purpose", "text", key_id)
    _, signed_at, signature = stamp.split(".")
    assert signer.key_id("purpose", "text", stamp, 60)
    for purpose, text, shown in (
        ("other", "text", stamp),
        ("purpose", "other", stamp),
        ("purpose", "text", f"{other.id}.{signed_at}.{signature}"),
        ("purpose", "text", f"{key_id}.A{signed_at[1:]}.{signature}"),
        ("purpose", f"text.{key_id}", f"{signed_at}.{signature}"),
        *(("purpose", "text", bent) for bent in ("", "a.b", "ü.1.x", stamp + "x", stamp[:-1], "...", "\ud800.1.a")),
    ):
        assert not signer.key_id(purpose, text, shown, 60), (purpose, text, shown)
    assert not signer.key_id("purpose", "text", stamp, -1)
    with database.write() as session:
        api_keys.revoke(session, key_id)
    stores.keys.clear()
    assert not signer.key_id("purpose", "text", stamp, 60)


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_the_key_never_comes_in_the_query(anonymous_client, api_key, method):
    assert (
        anonymous_client.request(method, "/jobs", params={"x-api-key": api_key, "apiKey": api_key}).status_code == 401
    )
