"""Counts for monitoring: correct, and at a cost that does not grow with the number of ended jobs."""

import pytest
from sqlalchemy import insert, true, update

from core.db.database import now
from core.db.models.jobs import GpuAllocation, Job, RepairCount, Worker
from core.jobs import lifecycle
from core.jobs.scheduling import claims, workers
from core.jobs.scheduling.claims import WorkerOffer
from core.jobs.states import JobState
from core.monitoring import snapshot


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


def test_a_worker_is_silent_when_it_runs_and_receives_nothing(database, taken):
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
