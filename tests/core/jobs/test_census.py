"""Figures of the record: right, and at a cost that does not grow with the jobs that have ended."""

from collections import Counter
from datetime import timedelta

import pytest
from sqlalchemy import event, func, insert, select, text, update

from core.db import Base, now
from core.ids import new_id
from core.jobs import census, claims, lifecycle, workers
from core.jobs.claims import Offer
from core.jobs.models import Event, Job, Worker
from core.jobs.states import JobState


@pytest.fixture
def taken(database):
    def take():
        with database.read() as session:
            return census.take(session)

    return take


@pytest.fixture
def counted():
    return Counter()


@pytest.fixture
def endings(counted):
    return census.Endings(lambda state, backend, number: counted.update({(state, backend): number}))


def look(database, endings):
    with database.read() as session:
        endings.look(session)


def register(database, name, *, slots=2, backends=("mock",)):
    with database.write() as session:
        workers.register(session, Offer(name, "h", tuple(backends)), boot_id="b", slots=slots)


def claim(database, worker="w"):
    with database.write() as session:
        return claims.claim(session, Offer(worker, "h", ("mock",)))


def end(database, job, reason="completed"):
    with database.write() as session:
        ended = lifecycle.ended(session, lifecycle.started(session, job, {"pid": 1}), reason)
        return lifecycle.finish(session, ended, artifacts_state="complete")


def change(database, table, **values):
    with database.write() as session:
        session.execute(update(table).values(**values))


def test_an_empty_record_has_nothing(taken):
    assert taken() == census.Census()


def test_jobs_that_have_not_ended_are_counted_by_state_and_backend(database, submit, taken):
    for _ in range(4):
        submit()
    end(database, claim(database))
    claim(database)
    assert taken().jobs == {(JobState.QUEUED, "mock"): 2, (JobState.STARTING, "mock"): 1}


def test_who_waits_longest_is_told_by_the_databases_clock(database, submit, taken):
    submit()
    change(database, Job, created_at=now(-500))
    submit()
    assert 500 <= taken().oldest_queued["mock"] < 530


def test_a_job_that_is_tried_again_has_waited_since_it_was_due(database, submit, taken):
    submit()
    change(database, Job, created_at=now(-5000), run_after=now(-70))
    assert 70 <= taken().oldest_queued["mock"] < 100
    change(database, Job, run_after=now(300))
    assert taken().oldest_queued["mock"] == 0


def test_workers_seen_lately_come_with_what_they_hold(database, submit, taken):
    register(database, "gone")
    change(database, Worker, seen_at=now(-3600))
    register(database, "busy", slots=3, backends=["mock", "docker"])
    register(database, "idle")
    for _ in range(2):
        submit()
        claim(database, "busy")
    assert taken().workers == [
        census.Presence("busy", "h", ("mock", "docker"), 3, 2),
        census.Presence("idle", "h", ("mock",), 2, 0),
    ]


def test_messages_that_were_not_sent_are_counted(submit, taken):
    submit()
    submit()
    assert taken().outbox == 2
    assert 0 <= taken().oldest_message < 30


def test_only_endings_after_the_first_look_are_counted_and_each_once(database, submit, endings, counted):
    for _ in range(3):
        submit()
    end(database, claim(database))
    look(database, endings)
    assert counted == {}
    end(database, claim(database))
    look(database, endings)
    look(database, endings)
    assert counted == {("succeeded", "mock"): 1}
    end(database, claim(database), "launch_failed")
    look(database, endings)
    assert counted == {("succeeded", "mock"): 1, ("failed", "mock"): 1}


def test_an_event_that_comes_in_with_an_earlier_number_is_not_missed(database, submit, endings, counted):
    """Two transactions take numbers and are committed the other way round, as PostgreSQL allows."""
    first, second = submit(), submit()
    look(database, endings)
    add_ending(database, second, number=1002)
    look(database, endings)
    add_ending(database, first, number=1001)
    look(database, endings)
    assert counted == {("cancelled", "mock"): 2}


def test_what_is_settled_is_not_read_again(database, submit, endings, counted):
    job = submit()
    look(database, endings)
    add_ending(database, job, number=1001)
    look(database, endings)
    change(database, Event, at=now(-census.SETTLED_SECONDS - 1))
    look(database, endings)
    assert (endings._settled, endings._counted) == (1001, set())
    add_ending(database, job, number=1002)
    look(database, endings)
    assert counted == {("cancelled", "mock"): 2}


def test_a_look_after_a_long_time_catches_up_in_stretches(database, submit, endings, counted, monkeypatch):
    monkeypatch.setattr(census, "MOST_EVENTS", 10)
    job = submit()
    change(database, Event, at=now(-3600))
    look(database, endings)
    begin = newest_event(database)
    for number in range(25):
        add_ending(database, job, number=begin + 1 + number)
    change(database, Event, at=now(-3600))
    for expected in (10, 20, 25, 25):
        look(database, endings)
        assert counted["cancelled", "mock"] == expected


def newest_event(database):
    with database.read() as session:
        return session.scalar(select(func.max(Event.id)))


def add_ending(database, job, *, number):
    values = {"id": number, "job_id": job.id, "kind": "finished", "attempt": 1, "lease": 1, "to_state": "cancelled"}
    with database.write() as session:
        session.execute(insert(Event).values(**values, at=now()))


def test_jobs_that_have_ended_are_not_looked_at(database, submit, endings):
    """The plan of every statement reads through an index, though nearly all rows are of ended jobs."""
    job = submit()
    add_ended(database, job, 20_000)
    look(database, endings)
    statements = []

    def note(connection, cursor, statement, parameters, context, many):
        del connection, cursor, context, many
        statements.append((statement, parameters))

    event.listen(database.engine, "before_cursor_execute", note)
    with database.read() as session:
        census.take(session)
        endings.look(session)
    event.remove(database.engine, "before_cursor_execute", note)
    plans = {statement: plan(database, statement, parameters) for statement, parameters in statements}
    touching = [text for statement, text in plans.items() if "FROM jobs" in statement or "FROM events" in statement]
    assert len(touching) == 3
    for lines in touching:
        assert "SCAN" not in lines, lines
        assert "Seq Scan" not in lines, lines


def plan(database, statement, parameters):
    words = "EXPLAIN QUERY PLAN " if database.is_sqlite else "EXPLAIN "
    with database.engine.connect() as connection:
        return "\n".join(str(row) for row in connection.exec_driver_sql(words + statement, parameters))


def add_ended(database, job, number):
    """Copies of a job that ended an hour ago, each with the event of its end."""
    jobs = Base.metadata.tables["jobs"]
    hour = timedelta(hours=1)
    with database.write() as session:
        row = dict(session.execute(jobs.select().where(jobs.c.id == job.id)).mappings().one())
        del row["seq"]
        row |= {"state": JobState.SUCCEEDED, "created_at": row["created_at"] - hour, "idempotency_key": None}
        rows = [row | {"id": new_id("j")} for _ in range(number)]
        session.execute(insert(jobs), rows)
        old = {"kind": "finished", "attempt": 1, "lease": 1, "to_state": "succeeded", "at": row["created_at"]}
        session.execute(insert(Event.__table__), [old | {"job_id": each["id"]} for each in rows])
    with database.engine.execution_options(isolation_level="AUTOCOMMIT").connect() as connection:
        connection.execute(text("ANALYZE"))
