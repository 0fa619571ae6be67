"""Counts for monitoring: correct, and at a cost that does not grow with the number of ended jobs."""

from datetime import timedelta

import pytest
from sqlalchemy import event, insert, text, true, update

from core.db.database import Base, now
from core.db.models.jobs import Attempt, Event, GpuAllocation, Job, RepairCount, Worker
from core.ids import new_id
from core.jobs import lifecycle
from core.jobs.scheduling import claims, workers
from core.jobs.scheduling.claims import WorkerOffer
from core.jobs.states import JobState
from core.monitoring import snapshot
from core.monitoring.job_event_totals import EventCounter

COUNTS_WAITING = "ix_jobs_waiting_pool"
"""A partial index as long as the queue."""


@pytest.fixture
def taken(database):
    def take():
        with database.read() as session:
            return snapshot.collect(session)

    return take


def register(database, name, *, slots=2, backends=("process",)):
    with database.write() as session:
        workers.register(session, WorkerOffer(name, "h", tuple(backends)), boot_id="b", slots=slots)


def claim(database, worker="w"):
    with database.write() as session:
        return claims.claim(session, WorkerOffer(worker, "h", ("process",)))


def end(database, job, reason="completed"):
    with database.write() as session:
        ended = lifecycle.mark_finishing(session, lifecycle.mark_running(session, job, {"pid": 1}), reason)
        return lifecycle.finish(session, ended, artifacts_state="complete")


def change(database, table, *, seq=None, **values):
    with database.write() as session:
        session.execute(update(table).where(Job.seq == seq if seq else true()).values(**values))


def test_an_empty_record_has_nothing(taken):
    assert taken() == snapshot.ServiceSnapshot()


def test_jobs_that_have_not_ended_are_counted_by_state_and_pool(database, submit, taken):
    for _ in range(4):
        submit()
    end(database, claim(database))
    claim(database)
    change(database, Job, seq=4, machine_type="V100")
    assert taken().jobs == {
        (JobState.QUEUED, "process", "CPU"): 1,
        (JobState.QUEUED, "process", "V100"): 1,
        (JobState.STARTING, "process", "CPU"): 1,
    }
    assert taken().pools == [("process", "CPU"), ("process", "V100")]
    assert taken().count_waiting(("process", "V100")) == 1


def test_jobs_whose_heart_is_silent_are_counted(database, submit, taken):
    submit()
    submit()
    job = claim(database)
    assert not +taken().stale_jobs
    change(database, Job, heartbeat_at=now(-61))
    assert taken().stale_jobs == {("process", job.machine_type): 1}


def test_who_waits_longest_is_told_by_the_databases_clock(database, submit, taken):
    submit()
    change(database, Job, created_at=now(-500))
    submit()
    assert 500 <= taken().oldest_queued["process", "CPU"] < 530


def test_a_job_that_is_tried_again_has_waited_since_it_was_due(database, submit, taken):
    submit()
    change(database, Job, created_at=now(-5000), run_after=now(-70))
    assert 70 <= taken().oldest_queued["process", "CPU"] < 100
    change(database, Job, run_after=now(300))
    assert taken().oldest_queued["process", "CPU"] == 0


def test_workers_seen_lately_come_with_what_they_hold(database, submit, taken):
    register(database, "gone")
    change(database, Worker, seen_at=now(-3600))
    register(database, "busy", slots=3, backends=["process", "docker"])
    register(database, "idle")
    for _ in range(2):
        submit()
        claim(database, "busy")
    assert taken().workers == [
        snapshot.WorkerStatus("busy", "h", ("process", "docker"), 3, 2),
        snapshot.WorkerStatus("idle", "h", ("process",), 2, 0),
    ]


def test_a_worker_that_was_not_seen_is_missed_for_a_day(database, taken):
    register(database, "away")
    change(database, Worker, seen_at=now(-3600))
    (missed,) = taken().lost_workers
    assert (missed.name, missed.is_stale, 3600 <= missed.heartbeat_age < 3700) == ("away", True, True)
    assert not taken().workers
    change(database, Worker, seen_at=now(-snapshot.WORKER_FORGOTTEN_SECONDS - 1))
    assert taken() == snapshot.ServiceSnapshot()


@pytest.mark.parametrize(
    ("values", "takes"),
    [
        ({"slots": 3}, True),
        ({"machine_types": ["CPU"]}, True),
        ({"machine_types": ["V100", "P4000"]}, False),
        ({"backends": ["docker"]}, False),
        ({"drained_at": now(-5)}, False),
        ({"seen_at": now(-61)}, False),
    ],
)
def test_which_workers_take_jobs_of_a_pool(database, submit, taken, values, takes):
    submit()
    register(database, "w")
    change(database, Worker, **values)
    assert taken().count_workers(("process", "CPU")) == takes


def test_pools_that_workers_name_are_there_without_jobs(database, taken):
    register(database, "w")
    assert taken().pools == []
    change(database, Worker, machine_types=["V100"])
    assert taken().pools == [("process", "V100")]


def test_a_worker_is_deaf_when_it_is_there_and_hears_nothing(database, taken):
    register(database, "w")
    assert not taken().workers[0].broker_silent
    change(database, Worker, broker_ping_at=now(-snapshot.BROKER_SILENT_SECONDS + 60))
    assert not taken().workers[0].broker_silent
    change(database, Worker, broker_ping_at=now(-snapshot.BROKER_SILENT_SECONDS - 1))
    assert taken().workers[0].broker_silent
    change(database, Worker, seen_at=now(-3600))
    assert not taken().lost_workers[0].broker_silent


def test_gpus_and_repairs(database, submit, taken):
    submit()
    job = claim(database)
    with database.write() as session:
        held = {"host": "h", "job_id": job.id, "attempt": 1}
        session.execute(insert(GpuAllocation), [held | {"gpu": gpu} for gpu in ("0", "1")])
        session.execute(insert(RepairCount).values(kind="scratch", total=7, last_at=now(-90), last_worker="w"))
    assert taken().gpus == {"h": 2}
    (repaired,) = taken().repairs
    assert (repaired.kind, repaired.total, repaired.worker, 90 <= repaired.last < 120) == ("scratch", 7, "w", True)


def test_messages_that_were_not_sent_are_counted(submit, taken):
    submit()
    submit()
    assert taken().outbox == 2
    assert 0 <= taken().oldest_message < 30


def test_jobs_that_have_ended_are_not_looked_at(database, submit):
    """The plan of every statement reads through an index, though nearly all rows are of ended jobs."""
    job = submit()
    add_ended(database, job, 20_000)
    following = EventCounter()
    with database.read() as session:
        following.poll(session)
    statements = []

    def note(connection, cursor, statement, parameters, context, many):
        del connection, cursor, context, many
        statements.append((statement, parameters))

    event.listen(database.engine, "before_cursor_execute", note)
    with database.read() as session:
        snapshot.collect(session)
        following.poll(session)
    event.remove(database.engine, "before_cursor_execute", note)
    plans = {statement: plan(database, statement, parameters) for statement, parameters in statements}
    touching = [text for statement, text in plans.items() if "FROM jobs" in statement or "FROM events" in statement]
    assert len(touching) == 4
    assert [lines for lines in touching if COUNTS_WAITING in lines]
    for lines in touching:
        assert "SCAN" not in lines.replace(f"SCAN jobs USING INDEX {COUNTS_WAITING}", ""), lines
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
        run = {"attempt": 1, "worker": "w", "host": "h", "claimed_at": row["created_at"], "log_bytes": 5}
        session.execute(insert(Attempt.__table__), [run | {"job_id": each["id"]} for each in rows])
    with database.engine.execution_options(isolation_level="AUTOCOMMIT").connect() as connection:
        connection.execute(text("ANALYZE"))
