"""The database's failures, as the rest of the service sees them."""

import sqlite3
from contextlib import ExitStack, closing, nullcontext

import psycopg
import pytest
from sqlalchemy import select, text, update
from sqlalchemy.exc import DataError
from support.servers.postgres import BackendTerminator

from core.db.database import Database
from core.db.models.jobs import Job
from core.errors import JobNotFound, StoreUnavailable


def run(database, statement, **values):
    with database.write() as session:
        session.execute(text(statement), values)


def test_a_connection_is_there_for_every_thread_however_many(database):
    with ExitStack() as held:
        for _ in range(40):
            held.enter_context(database.read()).scalar(select(Job.seq))
        assert database.engine.pool.checkedout() == 40


@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
def test_a_server_that_became_read_only_is_an_unavailable_store(database):
    with pytest.raises(StoreUnavailable):
        run(database, "SET TRANSACTION READ ONLY; DELETE FROM outbox")


def test_a_write_lock_that_another_process_keeps_is_an_unavailable_store(sqlite_database):
    other = sqlite3.connect(sqlite_database.engine.url.database, isolation_level=None)
    run(sqlite_database, "PRAGMA busy_timeout=1")  # of the connection that writes
    with closing(other):
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreUnavailable), sqlite_database.write():
            pytest.fail("two transactions write")
    run(sqlite_database, "DELETE FROM outbox")


def test_values_stay_out_of_errors(database):
    ending = "SELECT pg_terminate_backend(pg_backend_pid()), :value"
    with pytest.raises(StoreUnavailable) as caught:
        run(database, "INSERT INTO missing VALUES (:value)" if database.is_sqlite else ending, value="hunter2")
    assert "hunter2" not in str(caught.value.__cause__)


@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
def test_a_nul_is_refused_by_postgresql_as_the_fault_of_the_value(database):
    with pytest.raises(DataError), database.read() as session:
        session.scalar(select(Job.seq).where(Job.id == "j\0"))


@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
def test_a_connection_that_dies_at_the_end_of_a_read_is_an_unavailable_store(database):
    BackendTerminator(database)
    with pytest.raises(StoreUnavailable), database.read() as session:
        session.scalar(select(Job.seq))
    with database.read() as session:
        assert session.scalar(select(Job.seq)) is None, "the next one has a connection of its own"


def test_a_session_that_reads_changes_nothing(database, submit):
    job = submit(name="as it was")
    refused = nullcontext() if database.is_sqlite else pytest.raises(StoreUnavailable)
    with refused, database.read() as session:
        session.execute(update(Job).values(name="changed"))
    with database.read() as session:
        assert session.scalar(select(Job.name).where(Job.id == job.id)) == "as it was"


@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
def test_a_connection_is_asked_for_a_sign_of_life_if_it_was_idle_or_its_server_has_ended_it(database, monkeypatch):
    asked, ask = [], database.engine.dialect.do_ping
    monkeypatch.setattr(database.engine.dialect, "do_ping", lambda connection: asked.append(1) or ask(connection))

    def find_backend():
        with database.read() as session:
            return session.scalar(text("SELECT pg_backend_pid()"))

    first = find_backend()
    assert (find_backend(), asked) == (first, []), "it was used a moment ago"
    monkeypatch.setattr("core.db.database.TRUSTED_SECONDS", 0.0)
    assert (find_backend(), asked) == (first, [1])
    monkeypatch.setattr("core.db.database.TRUSTED_SECONDS", 3600.0)
    with psycopg.connect(database.url.replace("+psycopg", ""), autocommit=True) as other:
        other.execute("SELECT pg_terminate_backend(%s, 60000)", [first])
    assert find_backend() != first, "without an error"
    assert asked == [1, 1]


@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
@pytest.mark.parametrize("begin", ["read", "write"])
def test_a_connection_that_dies_while_an_error_is_told_is_an_unavailable_store(database, begin):
    def find_none():
        with getattr(database, begin)() as session:
            session.scalar(select(Job.seq))
            raise JobNotFound("none")

    BackendTerminator(database)
    with pytest.raises(StoreUnavailable):
        find_none()


@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
def test_a_connection_in_use_is_closed_after_its_database(database):
    with database.read() as session:
        used = session.connection().connection.driver_connection
        database.close()
        assert not used.closed
    assert used.closed
    with database.read() as session:
        later = session.connection().connection.driver_connection
    assert later.closed


def test_a_database_made_in_the_locale_c_has_text_like_any_other(postgres):
    url = postgres.new_database()
    with psycopg.connect(url, autocommit=True) as connection:
        name = connection.info.dbname
        connection.execute(
            f"CREATE DATABASE c_{name} TEMPLATE template0 ENCODING 'SQL_ASCII' LC_COLLATE 'C' LC_CTYPE 'C'"
        )
    with closing(Database(url.replace(name, f"c_{name}"))) as database, database.write() as session:
        assert session.scalar(text("SELECT CAST(:name AS text)"), {"name": "Zürich"}) == "Zürich"
