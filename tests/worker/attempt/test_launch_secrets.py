"""Secrets that an attempt gets at its launch, and its end if they are missing or unreadable."""

import pytest
from sqlalchemy import update

from core.db.database import Database
from core.db.models.jobs import Job
from core.jobs import queries
from core.jobs.scheduling import claims
from core.jobs.states import JobState
from core.security import credentials
from core.security.credentials import ALL_PROJECTS
from core.security.encryption import Vault
from core.settings import Settings
from worker.attempt.control import AttemptControl
from worker.attempt.pipeline import run_attempt
from worker.context import WorkerContext


@pytest.fixture
def database(sqlite_database: Database):
    return sqlite_database


@pytest.fixture
def host(database, tmp_path):
    return WorkerContext.open(Settings(home=tmp_path / "home"), database, worker_name="w1", hostname="here")


@pytest.fixture
def run(host, submit):
    """Run the next attempt of a job that names a secret; the job as it is then."""

    def run(job=None):
        job = job or submit('printf %s "$TOKEN" | sha256sum', env_vars={"TOKEN": "secret:token"})
        with host.database.write() as session:
            session.execute(update(Job).where(Job.id == job.id).values(run_after=None))
            claimed = claims.claim(session, host.build_offer())
        assert claimed.id == job.id
        run_attempt(host, claimed, AttemptControl())
        with host.database.read() as session:
            return queries.get_row(session, job.id)

    return run


def store(host, value="the-value"):
    with host.database.write() as session:
        credentials.put_secret(session, Vault(host.settings), ALL_PROJECTS, "token", value)


def test_a_secret_that_is_gone_ends_the_job_and_names_it(host, run):
    job = run()
    assert (job.state, job.reason, job.exit_code) == (JobState.FAILED, "secret_missing", None)
    assert "TOKEN names the secret token, which does not exist" in job.reason_detail
    assert list(host.scratch_root.iterdir()) == []


def test_a_secret_that_cannot_be_read_is_tried_again_and_then_said(host, run):
    store(host)
    keys = host.settings.root / "secrets.key"
    kept = keys.read_text()
    keys.unlink()
    job = run()
    assert (job.state, job.reason) == (JobState.QUEUED, "retrying")
    job = run(job)
    job = run(job)
    job = run(job)
    assert (job.state, job.reason) == (JobState.FAILED, "secret_unreadable")
    assert "secret token" in job.reason_detail
    keys.write_text(kept)
    keys.chmod(0o600)
    assert run().state is JobState.SUCCEEDED


def test_the_key_that_comes_back_in_time_saves_the_job(host, run):
    store(host)
    keys = host.settings.root / "secrets.key"
    keys.rename(keys.with_suffix(".away"))
    job = run()
    keys.with_suffix(".away").rename(keys)
    assert run(job).state is JobState.SUCCEEDED
