"""Checking a key or a password does the same work however much of it is right: nothing can be found by its time."""

import hmac

import pytest
from argon2 import PasswordHasher, extract_parameters
from sqlalchemy import event

from core.errors import Unauthorized
from core.security import api_keys, users


@pytest.fixture
def work(database, monkeypatch):
    """A function that returns the work since its last call: queries without values, compares, slow hashes."""
    done = []

    def query(_connection, _cursor, statement, *_rest):
        done.append(statement)

    def compare(given, wanted):
        done.append(("compare", len(given), len(wanted)))
        return original(given, wanted)

    def verify(hasher, stored, password):
        done.append(("verify", extract_parameters(stored)))
        return slow(hasher, stored, password)

    original, slow = hmac.compare_digest, PasswordHasher.verify
    event.listen(database.engine, "before_cursor_execute", query)
    monkeypatch.setattr(hmac, "compare_digest", compare)
    monkeypatch.setattr(PasswordHasher, "verify", verify)
    yield lambda: [done.pop(0) for _ in range(len(done))]
    event.remove(database.engine, "before_cursor_execute", query)


def signed(start):
    return f"{start}_{api_keys.checksum(start)}"


def test_a_wrong_key_costs_the_same_whatever_of_it_is_right(database, work):
    with database.write() as session:
        key, secret = api_keys.create(session, "k")
    _, _, chance, _ = secret.split("_")
    other = "".join("b" if letter == "a" else "a" for letter in chance)
    wrong = [signed(f"gj_{key.id}_{chance[:right]}{other[right:]}") for right in range(len(chance))]
    wrong += [signed(f"gj_{key.id[::-1]}_{chance}"), signed(f"gj_zzzzzzzz_{other}")]
    work()
    seen = []
    for one in wrong:
        with database.read() as session, pytest.raises(Unauthorized, match="does not know this API key"):
            api_keys.authenticate(session, one)
        seen.append(work())
    assert all(one == seen[0] for one in seen)
    assert ("compare", 32, 32) in seen[0]
    with database.read() as session:
        assert api_keys.authenticate(session, secret).id == key.id
    assert work() == seen[0]


def test_a_password_costs_the_same_whether_or_not_its_address_is_known(database, work):
    with database.write() as session:
        users.create(session, "ann@example.org", "a password of hers")
    work()
    seen = []
    for email, password in (
        ("ann@example.org", "a password of herz"),
        ("ann@example.org", "x"),
        ("bob@example.org", "a password of hers"),
        ("", ""),
    ):
        with database.read() as session, pytest.raises(Unauthorized):
            users.sign_in(session, email, password)
        seen.append(work())
    assert all(one == seen[0] for one in seen)
    assert [one[0] for one in seen[0] if isinstance(one, tuple)] == ["verify"]
    assert seen[0][-1][1].memory_cost == 16 * 1024
