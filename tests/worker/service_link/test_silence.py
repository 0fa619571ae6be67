"""Jobs of a host whose way to the service is cut before their commands begin."""

import time

import pytest
from sqlalchemy import update
from support.free_port import free_port

from core.db.models.jobs import Job
from core.errors import StoreUnavailable
from core.jobs import queries
from core.jobs.scheduling import claims
from core.jobs.scheduling.claims import WorkerOffer
from core.jobs.states import JobState
from core.settings import Settings
from worker.attempt.control import AttemptControl
from worker.attempt.pipeline import run_attempt
from worker.context import WorkerContext
from worker.service_link import link


@pytest.fixture
def host(database, tmp_path, monkeypatch):
    url = f"http://127.0.0.1:{free_port()}"
    settings = Settings(home=tmp_path / "home", worker={"service_url": url})
    host = WorkerContext.open(settings, database, worker_name="far", hostname="there")
    settings.root.mkdir()
    (settings.root / "worker-token").write_text("gw_token")
    monkeypatch.setattr(link, "GIVE_BACK_SECONDS", 0.5)
    with pytest.raises(StoreUnavailable):
        host.link.identify()
    return host


def read(host, job):
    with host.database.read() as session:
        return queries.get_row(session, job.id)


@pytest.mark.parametrize("attempts", [1, 6])
def test_a_job_that_has_not_started_is_given_back_as_often_as_it_takes(host, submit, attempts):
    job = submit("echo said")
    for attempt in range(1, attempts + 1):
        with host.database.write() as session:
            session.execute(update(Job).values(run_after=None))
            claimed = claims.claim(session, WorkerOffer("far", "there", ("process",)))
        began = time.monotonic()
        run_attempt(host, claimed, AttemptControl())
        row = read(host, job)
        assert (row.state, row.attempt, row.machine_faults, row.worker) == (JobState.QUEUED, attempt, attempt, None)
        assert "does not answer" in row.reason_detail
    assert time.monotonic() - began < 30, "it does not wait for what it cannot store"


def test_a_job_whose_command_may_run_is_kept(host, submit, monkeypatch):
    submit("echo said")
    with host.database.write() as session:
        job = claims.claim(session, WorkerOffer("far", "there", ("process",)))
    scratch = host.scratch(job.id, 1)
    scratch.control.mkdir(parents=True)
    (scratch.root / "launched").touch()
    time.sleep(0.6)
    requests = AttemptControl()
    monkeypatch.setattr(requests, "may_retry", lambda _seconds: bool(requests.detach()))
    run_attempt(host, job, requests)
    assert read(host, job).state is JobState.STARTING
