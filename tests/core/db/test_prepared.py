"""Prepared statements: values, times and errors are those of the same statements run by SQLAlchemy."""

from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import bindparam, delete, func, insert, literal_column, select
from sqlalchemy.exc import ProgrammingError

from core.db.database import Base, now
from core.db.models.jobs import Worker
from core.db.prepared import Prepared
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
