import pytest
from sqlalchemy import select

from core.db.models.credentials import User
from core.errors import NotFound, SpecInvalid, Unauthorized
from core.security import api_keys, users

PASSWORD = "correct horse battery"


@pytest.fixture
def ann(database):
    with database.write() as session:
        return users.create(session, " Ann@Example.org ", PASSWORD)


def sign_in(database, email=" ANN@example.org", password=PASSWORD):
    with database.read() as session:
        return users.sign_in(session, email, password)


def test_a_password_is_recognised_and_not_stored(database, ann):
    assert (sign_in(database).id, ann.email) == (ann.id, "ann@example.org")
    with database.read() as session:
        assert PASSWORD not in repr([one.password for one in session.scalars(select(User))])


@pytest.mark.parametrize(
    ("email", "password"),
    [
        ("ann@example.org", "wrong"),
        ("ann@example.org", ""),
        ("bob@example.org", PASSWORD),
        ("", ""),
        ("x\0y", "\ud800"),
    ],
)
def test_anybody_else_is_refused_in_the_same_words(sqlite_database, email, password):
    with sqlite_database.write() as session:
        users.create(session, "ann@example.org", PASSWORD)
    with pytest.raises(Unauthorized, match="The e-mail address or the password is wrong"):
        sign_in(sqlite_database, email, password)


@pytest.mark.parametrize(
    ("email", "password", "field"),
    [("nobody", PASSWORD, "email"), ("a@b\n", "short", "password"), ("a@" + "b" * 300, PASSWORD, "email"),
     ("a@b", "x" * 2000, "password")],
)  # fmt: skip
def test_what_cannot_be_is_refused(sqlite_database, email, password, field):
    with pytest.raises(SpecInvalid) as refused, sqlite_database.write() as session:
        users.create(session, email, password)
    assert refused.value.field == field


def test_an_address_is_given_once(database, ann):
    with pytest.raises(SpecInvalid, match="already exists"), database.write() as session:
        users.create(session, ann.email, PASSWORD)
    with database.read() as session:
        assert [one.id for one in users.list_users(session)] == [ann.id]


def test_who_is_removed_loses_their_keys_alone(database, ann):
    with database.write() as session:
        key, secret = users.create_key_for(session, ann.id, "laptop")
        other, others = api_keys.create(session, "other")
    with database.write() as session:
        assert [one.id for one in users.remove(session, "ANN@example.org")] == [key.id]
    with database.read() as session:
        assert api_keys.authenticate(session, others).id == other.id
        with pytest.raises(Unauthorized, match="was revoked"):
            api_keys.authenticate(session, secret)
    with pytest.raises(Unauthorized):
        sign_in(database)
    with pytest.raises(Unauthorized, match="no longer exists"), database.write() as session:
        users.create_key_for(session, ann.id, "later")
    with pytest.raises(NotFound, match="gradient-server users list"), database.write() as session:
        users.remove(session, "ann@example.org")
