"""The repairs that the service makes for hosts whose workers may change only their own jobs."""

import pytest
from sqlalchemy import update

from core.db.database import now
from core.db.models.jobs import Job
from core.jobs import lifecycle, queries
from core.jobs.scheduling import claims, workers
from core.jobs.scheduling.claims import WorkerOffer
from core.jobs.scheduling.shared_repairs import SharedRepairs
from core.jobs.states import JobState
from core.settings import Settings

OFFER = WorkerOffer("far", "there", ("process",))


@pytest.fixture
def repairs(database):
    settings = Settings()
    settings.worker.lost_after_seconds = settings.worker.lease_seconds = 0.0
    lost = []
    made = SharedRepairs(database, settings, lease="service", holder="api", host=None, on_lost=lost.append)
    yield made
    assert all(isinstance(job, Job) for job in lost)


@pytest.fixture
def end(database):
    """Let a far worker claim the next job and end it; it changes no other job."""

    def end(reason):
        with database.write() as session:
            job = lifecycle.mark_finishing(session, claims.claim(session, OFFER), reason, exit_code=0)
            return lifecycle.finish(session, job, artifacts_state="none", settles=False)

    return end


def read(database, job):
    with database.read() as session:
        return queries.get_row(session, job.id)


def test_a_silent_host_is_lost_only_beside_one_that_lives(repairs, database, submit):
    submit(max_attempts=2)
    with database.write() as session:
        workers.register(session, OFFER, boot_id="b", slots=1)
        job = claims.claim(session, OFFER)
        session.execute(update(Job).values(heartbeat_at=now(-100)))
    assert repairs.run()["lost_jobs"] == 0, "its worker may be started again"
    with database.write() as session:
        workers.register(session, WorkerOffer("other", "here", ("process",)), boot_id="b", slots=1)
    assert repairs.run()["lost_jobs"] == 1
    assert read(database, job).state is JobState.QUEUED


@pytest.mark.parametrize(
    ("reason", "state"), [("completed", JobState.STARTING), ("exit_nonzero", JobState.CANCELLED)], ids=str
)
def test_what_waits_for_a_job_whose_end_was_not_reported_is_settled(repairs, database, submit, end, reason, state):
    before = submit()
    after = submit(after=(before.id,))
    end(reason)
    assert read(database, after).state is JobState.QUEUED
    assert repairs.run()["settled"] == 1
    assert repairs.run()["settled"] == 0
    with database.write() as session:
        claims.claim(session, OFFER)
    assert read(database, after).state is state


def test_an_array_is_settled_with_its_last_member(repairs, database, submit, end):
    for _ in range(2):
        submit()
    with database.write() as session:
        session.execute(update(Job).values(array_id="a1234567890123"))
    after = submit(after=("a1234567890123",))
    end("completed")
    assert repairs.run()["settled"] == 0
    end("completed")
    assert repairs.run()["settled"] > 0
    assert repairs.run()["settled"] == 0
    with database.write() as session:
        assert claims.claim(session, OFFER).id == after.id
