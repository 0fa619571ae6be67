"""Removal by policy, as part of a worker's repairs."""

import pytest
from support.retention_jobs import RetentionJobs

from core.settings import Settings
from core.settings.limits import RetentionSettings
from worker.context import WorkerContext
from worker.maintenance import job_sweep
from worker.maintenance.job_sweep import Sweep


@pytest.fixture
def host(database, tmp_path):
    settings = Settings(home=tmp_path / "home", retention=RetentionSettings(logs_days=30))
    return WorkerContext.open(settings, database, worker_name="w1", hostname="here")


@pytest.fixture
def retention_jobs(host, tmp_path):
    return RetentionJobs(host, tmp_path / "left")


def test_it_looks_once_an_hour_and_goes_on_where_time_ran_out(host, retention_jobs, monkeypatch):
    repairs = Sweep(host)
    retention_jobs.create_job(31, log=b"x\n")
    monkeypatch.setattr(job_sweep, "PRUNE_SECONDS", 0.0)
    assert repairs.run(set())["retention"] == 0
    monkeypatch.setattr(job_sweep, "PRUNE_SECONDS", 20.0)
    assert repairs.run(set())["retention"] == 1
    retention_jobs.create_job(31, log=b"x\n")
    assert repairs.run(set())["retention"] == 0
    monkeypatch.setattr(repairs, "prune_at", 0.0)
    assert repairs.run(set())["retention"] == 1
