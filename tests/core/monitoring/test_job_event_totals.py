"""Jobs are counted as they are claimed and end, each once, whoever claimed or ended them."""

from collections import Counter

import pytest
from sqlalchemy import insert, update

from core.db.database import now
from core.db.models.jobs import Event, Job
from core.jobs import lifecycle
from core.jobs.guarded_updates import set_output_sizes
from core.jobs.scheduling import claims
from core.jobs.scheduling.claims import WorkerOffer
from core.monitoring.job_event_totals import EventCounter


@pytest.fixture
def following():
    return EventCounter()


@pytest.fixture
def counted():
    """Return the endings counted so far."""
    return Counter()


@pytest.fixture
def look(database, following, counted):
    def look():
        with database.read() as session:
            happened = following.poll(session)
        counted.update(happened.ended)
        return happened

    return look


def claim(database, worker="w"):
    with database.write() as session:
        return claims.claim(session, WorkerOffer(worker, "h", ("process",)))


def end(database, job, reason="completed", *, log_bytes=None, artifact_bytes=None):
    with database.write() as session:
        ended = lifecycle.mark_finishing(session, lifecycle.mark_running(session, job, {"pid": 1}), reason)
        closed = lifecycle.finish(session, ended, artifacts_state="complete")
        set_output_sizes(session, closed, log_bytes=log_bytes, artifact_bytes=artifact_bytes)
    return closed


def change_jobs(database, **values):
    with database.write() as session:
        session.execute(update(Job).values(**values))


def test_only_endings_after_the_first_look_are_counted_and_each_once(database, submit, look, counted):
    for _ in range(3):
        submit()
    end(database, claim(database))
    look()
    assert counted == {}
    end(database, claim(database))
    look()
    look()
    assert counted == {("succeeded", "process", "CPU"): 1}
    end(database, claim(database), "launch_failed")
    look()
    assert counted == {("succeeded", "process", "CPU"): 1, ("failed", "process", "CPU"): 1}


def test_an_event_that_comes_in_with_an_earlier_number_is_not_missed(database, submit, look, counted):
    """Two transactions take numbers and are committed the other way round, as PostgreSQL allows."""
    first, second = submit(), submit()
    look()
    add_ending(database, second, number=1002)
    look()
    add_ending(database, first, number=1001)
    look()
    assert counted == {("cancelled", "process", "CPU"): 2}


def add_ending(database, job, *, number):
    values = {"id": number, "job_id": job.id, "kind": "finished", "attempt": 1, "lease": 1, "to_state": "cancelled"}
    with database.write() as session:
        session.execute(insert(Event).values(**values, at=now()))


def test_a_claim_is_timed_from_when_its_job_was_due(database, submit, look):
    look()
    submit()
    change_jobs(database, created_at=now(-100))
    claim(database)
    ((pool, seconds),) = look().claims
    assert (pool, 100 <= seconds < 130) == (("process", "CPU"), True)
    assert look().claims == []


def test_what_attempts_left_is_counted_once_they_end(database, submit, look):
    look()
    submit(max_attempts=2)
    end(database, claim(database), "launch_failed", log_bytes=100, artifact_bytes=5)
    change_jobs(database, run_after=None)
    # The job's log goes on: the second attempt accounts for what it added.
    end(database, claim(database), log_bytes=160, artifact_bytes=7)
    happened = look()
    assert (happened.log_bytes, happened.artifact_bytes) == (160, 12)
    assert sum(happened.ended.values()) == 1
    assert look().log_bytes == 0
