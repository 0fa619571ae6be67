"""Prepared statements: values, times and errors are those of the same statements run by SQLAlchemy."""

from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import bindparam, delete, func, insert, literal_column, select, update
from sqlalchemy.dialects import sqlite
from sqlalchemy.exc import IntegrityError, ProgrammingError

from core.db.database import Base, now
from core.db.models.jobs import Worker
from core.db.prepared import Prepared, is_one_of
from core.errors import StoreUnavailable

EVENTS, WORKERS = Base.metadata.tables["events"], Base.metadata.tables["workers"]
VALUES = {
    "name": "w",
    "host": "h",
    "boot_id": "b",
    "backends": ["process", "docker"],
    "slots": 2,
    "gpus": None,
    "cpus": 1.5,
    "started_at": datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
}
ADD = Prepared(insert(WORKERS).values(seen_at=now(60)), tuple(VALUES))
ALL = Prepared(select(WORKERS))


def test_values_come_back_as_sqlalchemy_returns_them(database):
    with database.write() as session:
        ADD.execute(session, VALUES)
        ((*written,),) = ALL.rows(session, {})
    with database.read() as session:
        ((*read,),) = ALL.rows(session, {})
        by_sqlalchemy = session.execute(select(WORKERS)).one()
        worker = session.get(Worker, "w")
    assert written == read == list(by_sqlalchemy)
    assert worker.backends == VALUES["backends"]
    assert worker.gpus is None
    assert abs(worker.seen_at - datetime.now(UTC) - timedelta(seconds=60)) < timedelta(seconds=30), (
        "the database's time"
    )


def test_only_rows_with_one_of_the_values_are_changed(database):
    with database.write() as session:
        for name in ("a", "b", "c"):
            ADD.execute(session, VALUES | {"name": name})
        moved = update(WORKERS).where(is_one_of(WORKERS.c.name, ("a", "c"))).values(host=bindparam("to"))
        changed = Prepared(moved.returning(WORKERS.c.name)).rows(session, {"to": "new"})
        assert sorted(changed) == [["a"], ["c"]]
        none = Prepared(select(WORKERS.c.name).where(is_one_of(Worker.name, ())))
        assert none.rows(session, {}) == []


def test_a_change_is_undone_with_its_transaction(database):
    def fail(session):
        ADD.execute(session, VALUES)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), database.write() as session:
        fail(session)
    with database.read() as session:
        assert session.scalar(select(func.count()).select_from(WORKERS)) == 0


def test_a_change_is_undone_with_its_savepoint(database):
    def fail(session):
        with session.begin_nested():
            ADD.execute(session, VALUES)
            raise ZeroDivisionError

    with database.write() as session:
        with pytest.raises(ZeroDivisionError):
            fail(session)
        ADD.execute(session, VALUES | {"name": "other"})
        assert Prepared(select(WORKERS.c.name)).rows(session, {}) == [["other"]]


def test_an_error_is_one_of_sqlalchemy_without_the_values(database):
    broken = Prepared(select(literal_column("missing")).where(literal_column("1") == bindparam("value")))
    expected = StoreUnavailable if database.is_sqlite else ProgrammingError  # as SQLAlchemy and the driver name it
    with pytest.raises(expected) as caught, database.read() as session:
        broken.rows(session, {"value": "hunter2"})
    assert "hunter2" not in f"{caught.value}{caught.value.__cause__}"


@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
def test_a_connection_that_dies_is_an_unavailable_store_and_is_replaced(database):
    ended = Prepared(select(func.pg_terminate_backend(func.pg_backend_pid())))
    with database.write() as session:
        session.execute(delete(Worker))
    with pytest.raises(StoreUnavailable), database.write() as session:
        ended.rows(session, {})
    with database.write() as session:
        ADD.execute(session, VALUES)


def test_rows_are_inserted_together_and_all_or_none(database):
    rows = [VALUES | {"name": name} for name in ("a", "b")]
    with database.write() as session:
        ADD.execute(session, *rows)
        assert [row[0] for row in Prepared(select(WORKERS.c.name).order_by(WORKERS.c.name)).rows(session, {})] == [
            "a",
            "b",
        ]
    with pytest.raises(IntegrityError), database.write() as session:
        ADD.execute(session, VALUES, VALUES)


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_an_insert_returns_its_key_and_none_for_what_is_ignored(database, submit):
    events = Prepared(
        sqlite.insert(EVENTS).values(at=now(), lease=0).on_conflict_do_nothing(), ("id", "job_id", "kind", "attempt")
    )
    row = {"job_id": submit().id, "kind": "note", "attempt": 0}
    with database.write() as session:
        assert events.insert(session, row | {"id": 900}) == 900
        assert events.insert(session, row | {"id": 900}) is None
        assert events.insert(session, row | {"id": None}) == 901
