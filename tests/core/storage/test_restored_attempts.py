"""Attempt numbers of jobs whose logs and artifacts are newer than the database."""

import pytest
from sqlalchemy import update
from support.retention_jobs import RetentionJobs

from core.db.models.jobs import Job
from core.jobs.states import JobState
from core.settings import Settings
from core.storage.artifacts.factory import open_artifacts
from core.storage.restored_attempts import raise_attempts
from core.storage.stores import Stores


@pytest.fixture
def jobs(tmp_path, database):
    settings = Settings(home=tmp_path / "home")
    stores = Stores(settings=settings, database=database, artifacts=open_artifacts(settings))
    return RetentionJobs(stores, tmp_path / "outputs")


def set_attempt(jobs, job, attempt):
    with jobs.database.write() as session:
        session.execute(update(Job).where(Job.id == job.id).values(attempt=attempt))


@pytest.mark.parametrize("state", [JobState.QUEUED, JobState.RUNNING])
@pytest.mark.parametrize("outputs", [{"log": b"x\n"}, {"files": ["model"]}], ids=["log", "artifacts"])
def test_a_job_gets_the_attempt_of_its_outputs_once(jobs, state, outputs):
    job = jobs.create_job(1, state=state, **outputs)
    set_attempt(jobs, job, 0)
    assert [raise_attempts(jobs.stores) for _ in range(2)] == [1, 0]
    row = jobs.read_row(job)
    assert (row.attempt, row.machine_faults, row.state) == (1, 1, state)


def test_other_jobs_keep_their_attempt(jobs):
    ended = jobs.create_job(1, log=b"x\n")
    set_attempt(jobs, ended, 0)
    retried = jobs.create_job(1, state=JobState.QUEUED, log=b"x\n", files=["model"])
    silent = jobs.create_job(1, state=JobState.QUEUED)
    assert raise_attempts(jobs.stores) == 0
    assert [jobs.read_row(job).attempt for job in (ended, retried, silent)] == [0, 1, 1]
