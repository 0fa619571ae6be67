"""Removal by policy, as part of a worker's repairs."""

import pytest
from support.old_jobs import OldJobs

from core.settings import Settings
from core.settings.retention import RetentionSettings
from worker.context import WorkerContext
from worker.maintenance import job_sweep
from worker.maintenance.job_sweep import Sweep


@pytest.fixture
def host(database, tmp_path):
    settings = Settings(home=tmp_path / "home", retention=RetentionSettings(logs_days=30))
    return WorkerContext.open(settings, database, worker_name="w1", hostname="here")


@pytest.fixture
def old_jobs(host, tmp_path):
    return OldJobs(host, tmp_path / "left")


def test_the_sweep_removes_what_is_due(host, old_jobs):
    old, young = old_jobs.create_job(31, log=b"x\n"), old_jobs.create_job(1, log=b"x\n")
    assert Sweep(host).run(set())["retention"] == 1
    assert old_jobs.read_row(old).logs_removed_at is not None
    assert old_jobs.read_row(young).logs_removed_at is None


def test_it_looks_once_an_hour_and_goes_on_where_time_ran_out(host, old_jobs, monkeypatch):
    repairs = Sweep(host)
    old_jobs.create_job(31, log=b"x\n")
    monkeypatch.setattr(job_sweep, "PRUNE_SECONDS", 0.0)
    assert repairs.run(set())["retention"] == 0
    monkeypatch.setattr(job_sweep, "PRUNE_SECONDS", 20.0)
    assert repairs.run(set())["retention"] == 1
    old_jobs.create_job(31, log=b"x\n")
    assert repairs.run(set())["retention"] == 0
    monkeypatch.setattr(repairs, "_prune_at", 0.0)
    assert repairs.run(set())["retention"] == 1
