"""Jobs whose logs, artifacts and scratch folders are newer than the database, or gone."""

import pytest
from sqlalchemy import update
from support.retention_jobs import RetentionJobs

from core.db.database import now
from core.db.models.jobs import Job
from core.jobs import lifecycle, queries
from core.jobs.scheduling import claims
from core.jobs.scheduling.claims import WorkerOffer
from core.jobs.states import JobState
from core.settings import Settings
from core.storage.artifacts.factory import open_artifacts
from core.storage.restored_attempts import adapt_jobs
from core.storage.stores import Stores

HANDLE = {"version": 1, "name": "x"}
OUTPUTS = pytest.mark.parametrize("outputs", [{"log": b"x\n"}, {"files": ["model"]}], ids=["log", "artifacts"])


@pytest.fixture
def jobs(tmp_path, database):
    settings = Settings(home=tmp_path / "home")
    stores = Stores(settings=settings, database=database, artifacts=open_artifacts(settings))
    return RetentionJobs(stores, tmp_path / "outputs")


def set_values(jobs, job, **values):
    with jobs.database.write() as session:
        session.execute(update(Job).where(Job.id == job.id).values(**values))


def make_scratch(jobs, job, attempt=1):
    (jobs.stores.settings.root / "attempts" / f"{job.id}-{attempt}").mkdir(parents=True)


def claim(jobs, submit, until=JobState.STARTING, *, exit_code=0, **spec):
    """A job that a worker holds in this state, with a last heartbeat of 100 s ago."""
    submit(**spec)
    with jobs.database.write() as session:
        job = claims.claim(session, WorkerOffer("w1", "h1", ("process",)))
        if until is not JobState.STARTING:
            job = lifecycle.mark_running(session, job, HANDLE)
        if until is JobState.FINISHING:
            job = lifecycle.mark_finishing(session, job, "exit_nonzero" if exit_code else "completed")
    set_values(jobs, job, heartbeat_at=now(-100), started_at=None if job.started_at is None else now(-200))
    return jobs.read_row(job)


def adapt(jobs):
    """Adapt twice: a repeat changes nothing."""
    changed, again = [adapt_jobs(jobs.stores) for _ in range(2)]
    assert again == 0
    return changed


def read_attempts(jobs, job):
    with jobs.database.read() as session:
        return queries.attempts(session, job.id)


@OUTPUTS
def test_a_waiting_job_gets_the_attempt_of_its_outputs_once(jobs, outputs):
    job = jobs.create_job(1, state=JobState.QUEUED, **outputs)
    set_values(jobs, job, attempt=0, artifacts_state="none")
    assert adapt(jobs) == 1
    row = jobs.read_row(job)
    assert (row.attempt, row.machine_faults, row.state) == (1, 1, JobState.QUEUED)
    assert row.artifacts_state == ("complete" if "files" in outputs else "none")


def test_a_scratch_folder_uses_up_the_attempt_of_a_waiting_job_without_outputs(jobs, submit):
    """Else it would end with `process_lost`, if its processes are gone, instead of running."""
    job = submit()
    make_scratch(jobs, job)
    (jobs.stores.settings.root / "attempts" / "notes").mkdir()
    assert adapt(jobs) == 1
    assert jobs.read_row(job).attempt == 1


@OUTPUTS
def test_a_job_that_was_about_to_start_does_not_run_as_the_same_attempt(jobs, submit, outputs):
    job = claim(jobs, submit)
    jobs.write_outputs(job, outputs.get("log", b""), outputs.get("files", ()))
    assert adapt(jobs) == 1
    row = jobs.read_row(job)
    assert (row.state, row.attempt, row.machine_faults, row.lease) == (JobState.QUEUED, 1, 1, job.lease + 1)
    assert (row.worker, row.host, row.handle) == (None, None, None)
    (attempt,) = read_attempts(jobs, job)
    assert (attempt.ended_at, attempt.reason) == (job.heartbeat_at, "process_lost")


def test_a_job_that_was_about_to_start_and_left_nothing_is_adopted(jobs, submit):
    job = claim(jobs, submit)
    assert adapt(jobs) == 0
    assert jobs.read_row(job).lease == job.lease


@pytest.mark.parametrize("until", [JobState.STARTING, JobState.RUNNING, JobState.FINISHING])
def test_a_job_with_the_scratch_folder_of_its_attempt_is_adopted(jobs, submit, until):
    job = claim(jobs, submit, until)
    jobs.write_outputs(job, b"x\n", ())
    make_scratch(jobs, job)
    assert adapt(jobs) == 0
    assert jobs.read_row(job).lease == job.lease


@pytest.mark.parametrize("until", [JobState.STARTING, JobState.RUNNING])
def test_a_job_that_was_retried_since_waits_for_its_next_attempt_and_the_known_one_is_closed(jobs, submit, until):
    """Its running time ends with the last heartbeat, and it does not count as having had a fault of its own."""
    job = claim(jobs, submit, until)
    make_scratch(jobs, job, 2)
    make_scratch(jobs, job, 3)
    assert adapt(jobs) == 1
    row = jobs.read_row(job)
    assert (row.state, row.attempt, row.machine_faults, row.lease) == (JobState.QUEUED, 3, 3, job.lease + 1)
    assert (row.worker, row.host, row.handle) == (None, None, None)
    (attempt,) = read_attempts(jobs, job)
    assert (attempt.ended_at, attempt.reason) == (job.heartbeat_at, "process_lost")


def test_a_run_that_began_after_the_last_heartbeat_has_no_negative_time(jobs, submit):
    job = claim(jobs, submit, JobState.RUNNING)
    set_values(jobs, job, started_at=now(-50))
    assert adapt(jobs) == 1
    (attempt,) = read_attempts(jobs, job)
    assert attempt.ended_at == jobs.read_row(job).started_at


def test_a_job_that_was_to_stop_does_not_wait_again(jobs, submit):
    job = claim(jobs, submit)
    with jobs.database.write() as session:
        lifecycle.request_stop(session, job.id)
    jobs.write_outputs(job, b"x\n", ())
    assert adapt(jobs) == 1
    assert jobs.read_row(job).state is JobState.CANCELLED


@pytest.mark.parametrize(("attempts", "state"), [(1, JobState.FAILED), (2, JobState.QUEUED)])
def test_a_running_job_without_scratch_is_lost_and_runs_again_only_if_it_may(jobs, submit, attempts, state):
    job = claim(jobs, submit, JobState.RUNNING, max_attempts=attempts)
    jobs.write_outputs(job, b"x\n", ["model"])
    set_values(jobs, job, artifacts_state="none")
    assert adapt(jobs) == 1
    row = jobs.read_row(job)
    assert (row.state, row.attempt, row.artifacts_state) == (state, 1, "complete")
    (attempt,) = read_attempts(jobs, job)
    assert (attempt.ended_at, attempt.reason) == (job.heartbeat_at, "process_lost")


def test_a_job_that_was_collecting_shows_its_stored_artifacts(jobs, submit):
    job = claim(jobs, submit, JobState.FINISHING)
    jobs.write_outputs(job, b"x\n", ["model"])
    set_values(jobs, job, artifacts_state="none")
    assert adapt(jobs) == 1
    row = jobs.read_row(job)
    assert (row.state, row.lease, row.artifacts_state) == (JobState.FINISHING, job.lease, "complete")
