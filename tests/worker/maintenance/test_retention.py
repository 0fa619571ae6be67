"""Removal by policy, as part of a worker's repairs."""

import pytest
from support.old_jobs import Aging

from core.settings import Settings
from core.settings.retention import RetentionSettings
from worker.context import WorkerContext
from worker.maintenance import jobs
from worker.maintenance.jobs import Sweep


@pytest.fixture
def host(database, tmp_path):
    settings = Settings(home=tmp_path / "home", retention=RetentionSettings(logs_days=30))
    return WorkerContext.open(settings, database, worker_name="w1", hostname="here")


@pytest.fixture
def aging(host, tmp_path):
    return Aging(host, tmp_path / "left")


def test_the_sweep_removes_what_is_due(host, aging):
    old, young = aging.job(31, log=b"x\n"), aging.job(1, log=b"x\n")
    assert Sweep(host).run(set())["retention"] == 1
    assert aging.row(old).logs_removed_at is not None
    assert aging.row(young).logs_removed_at is None


def test_it_looks_once_an_hour_and_goes_on_where_time_ran_out(host, aging, monkeypatch):
    repairs = Sweep(host)
    aging.job(31, log=b"x\n")
    monkeypatch.setattr(jobs, "PRUNE_SECONDS", 0.0)
    assert repairs.run(set())["retention"] == 0
    monkeypatch.setattr(jobs, "PRUNE_SECONDS", 20.0)
    assert repairs.run(set())["retention"] == 1
    aging.job(31, log=b"x\n")
    assert repairs.run(set())["retention"] == 0
    monkeypatch.setattr(repairs, "_prune_at", 0.0)
    assert repairs.run(set())["retention"] == 1
