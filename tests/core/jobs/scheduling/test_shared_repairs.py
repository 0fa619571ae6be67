"""The repairs that the service makes for hosts whose workers may change only their own jobs."""

import pytest
from sqlalchemy import update

from core.db.database import now
from core.db.models.jobs import Job, Worker
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


@pytest.fixture
def fail(database, submit):
    """Let a worker claim a new job and fail it; returns the job."""

    def fail(reason, worker="a", **job):
        made = submit(**job)
        with database.write() as session:
            session.execute(update(Job).where(Job.id == made.id).values(priority=100))
            held = claims.claim(session, WorkerOffer(worker, worker, ("process",)))
            assert held.id == made.id
            return lifecycle.finish(
                session, lifecycle.mark_finishing(session, held, reason), artifacts_state="none", settles=False
            )

    return fail


@pytest.fixture
def drain_reason(repairs, database):
    """A function: make the repairs, and return why a worker was drained."""
    with database.write() as session:
        for name in ("a", "b"):
            workers.register(session, WorkerOffer(name, name, ("process",)), boot_id="b", slots=5)

    def drain_reason(name):
        repairs.run()
        with database.read() as session:
            worker = session.get_one(Worker, name)
            assert (worker.drained_at is None) is (worker.drain_reason is None)
            return worker.drain_reason

    return drain_reason


def test_a_host_on_which_jobs_fail_in_turn_is_drained_until_it_is_resumed(fail, drain_reason, database):
    failed = [fail("launch_failed") for _ in range(2)]
    assert drain_reason("a") is None
    failed.append(fail("process_lost"))
    reason = drain_reason("a")
    assert reason == "3 jobs in turn failed here by the machine's fault"
    assert not any(job.id in reason for job in failed), "some may be hidden from whoever sees the worker"
    assert drain_reason("b") is None
    with database.write() as session:
        workers.set_drained(session, "a", drained=False)
    assert drain_reason("a") is None, "what was before does not count"
    for _ in range(3):
        fail("launch_failed")
    assert "3 jobs" in drain_reason("a")


@pytest.mark.parametrize("other", ["completed", "exit_nonzero"])
def test_a_host_that_can_run_jobs_is_not_drained(fail, drain_reason, other):
    fail("launch_failed")
    fail(other)
    fail("launch_failed")
    fail("launch_failed")
    assert drain_reason("a") is None


def test_jobs_that_one_event_ends_count_once(database, submit, drain_reason):
    for _ in range(3):
        submit()
    with database.write() as session:
        held = [claims.claim(session, WorkerOffer("a", "a", ("process",))) for _ in range(3)]
        for job in held:
            lifecycle.fail_lost(session, job, "host_restarted")
    assert drain_reason("a") is None


def test_jobs_that_fail_so_anywhere_drain_no_host(fail, drain_reason, database):
    for _ in range(3):
        job = fail("launch_failed")
        with database.write() as session:
            session.execute(update(Job).where(Job.id == job.id).values(run_after=None))
            again = claims.claim(session, WorkerOffer("b", "b", ("process",)))
            assert again.id == job.id
            lifecycle.finish(session, lifecycle.mark_finishing(session, again, "launch_failed"), artifacts_state="none")
            session.execute(update(Job).where(Job.id == job.id).values(state="failed", finished_at=None))
    assert (drain_reason("a"), drain_reason("b")) == (None, None)


def test_other_faults_of_machines_drain_no_host(fail, drain_reason):
    for reason in ("gpu_in_use", "preempted", "internal_error"):
        fail(reason)
    assert drain_reason("a") is None
