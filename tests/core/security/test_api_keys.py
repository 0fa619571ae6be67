"""API keys: made, recognised, revoked, and noted when used."""

import hashlib
import time
from types import SimpleNamespace

import pytest
from sqlalchemy import update

from core.db.database import now
from core.db.models.credentials import ApiKey
from core.errors import NotFound, Unauthorized
from core.security import api_keys
from core.security.api_keys import ApiKeyCache


@pytest.fixture
def made(database):
    with database.write() as session:
        return api_keys.create(session, "laptop")


def test_a_key_is_shown_once_and_stored_as_its_digest(database, made):
    key, secret = made
    prefix, key_id, chance, check = secret.split("_")
    assert (prefix, key_id, len(key_id), len(chance), len(check)) == ("gj", key.id, 8, 43, 6)
    with database.read() as session:
        stored = session.get(ApiKey, key.id)
    assert stored.sha256 == hashlib.sha256(secret.encode()).digest()
    assert stored.last_used_at is None
    assert chance not in repr(vars(stored))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda _: "", "gj_"),
        (lambda _: "sk-123", "gj_"),
        (lambda secret: secret[:-1], "misspelled"),
        (lambda secret: secret[:20] + ("x" if secret[20] != "x" else "y") + secret[21:], "misspelled"),
        (lambda secret: secret + "ü", "misspelled"),
        (lambda _: "gj_\ud800_b_c", "misspelled"),
    ],
)
def test_a_misspelt_key_is_told_from_a_foreign_one(database, made, change, says):
    with database.read() as session, pytest.raises(Unauthorized, match=says):
        api_keys.authenticate(session, change(made[1]))


def test_a_key_of_another_server_is_unknown(database, made):
    _, key_id, chance, _ = made[1].split("_")
    foreign = f"gj_{key_id[::-1]}_{chance}"
    other = f"gj_{key_id}_{chance[::-1]}"
    for start in (foreign, other):
        with database.read() as session, pytest.raises(Unauthorized, match="does not know this API key"):
            api_keys.authenticate(session, f"{start}_{api_keys.checksum(start)}")


def test_a_revoked_key_is_refused_and_a_repeat_changes_nothing(database, made):
    key, secret = made
    with database.write() as session:
        first = api_keys.revoke(session, key.id).revoked_at
    with database.write() as session:
        assert api_keys.revoke(session, key.id).revoked_at == first
    with database.read() as session, pytest.raises(Unauthorized, match="revoked"):
        api_keys.authenticate(session, secret)
    with database.write() as session, pytest.raises(NotFound):
        api_keys.revoke(session, "none")


class Counted:
    """A database that counts how often it is read."""

    def __init__(self, database):
        self._database = database
        self.reads = 0

    def read(self):
        self.reads += 1
        return self._database.read()

    def write(self):
        return self._database.write()


def test_a_cache_asks_once_and_forgets_in_time(database, made, monkeypatch):
    key, secret = made
    counted = Counted(database)
    ring = ApiKeyCache(counted)
    assert ring.cached(secret) is None
    for _ in range(10):
        assert ring.authenticate(secret).id == key.id
    assert counted.reads == 1
    assert ring.cached(secret).id == key.id
    with database.write() as session:
        api_keys.revoke(session, key.id)
    later = time.monotonic() + api_keys.CACHE_SECONDS
    monkeypatch.setattr("core.security.row_cache.time", SimpleNamespace(monotonic=lambda: later))
    assert ring.cached(secret) is None
    for refuse in (lambda: ring.authenticate(secret), lambda: ring.get(key.id)):
        with pytest.raises(Unauthorized, match="revoked"):
            refuse()


def test_use_is_recorded_apart_from_requests_and_at_most_once_a_minute(database, made):
    key, secret = made
    ring = ApiKeyCache(database)

    def used_at():
        with database.read() as session:
            return session.get(ApiKey, key.id).last_used_at

    ring.flush()
    ring.authenticate(secret)
    assert used_at() is None
    ring.flush()
    first = used_at()
    assert first is not None
    ring.authenticate(secret)
    ring.flush()
    assert used_at() == first


def test_a_key_expires_and_says_so(database, made):
    with database.write() as session:
        short, secret = api_keys.create(session, "short", days=30)
        session.execute(update(ApiKey).where(ApiKey.id == short.id).values(expires_at=now(-1)))
    ring = ApiKeyCache(database)
    for refuse in (lambda: ring.authenticate(secret), lambda: ring.get(short.id)):
        with pytest.raises(Unauthorized, match=f"{short.id} expired at 20.* UTC. Ask for a new one"):
            refuse()
    with database.read() as session:
        assert {key.name: api_keys.state(key) for key in api_keys.list_keys(session)} == {
            "laptop": "valid",
            "short": "expired",
        }
        assert session.get(ApiKey, made[0].id).expires_at is None
