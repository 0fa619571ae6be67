"""Cost since midnight: of each job the part since then, and a job that ended long ago is read only once."""

from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import literal, update

from core.db.database import UtcDateTime
from core.db.models.jobs import Job
from core.jobs.states import JobState
from core.monitoring import cost_today
from core.monitoring.cost_today import CostToday

MIDNIGHT = datetime(2026, 3, 5, tzinfo=UTC)


def after_midnight(hours):
    return MIDNIGHT + timedelta(hours=hours)


@pytest.fixture
def spent_at(database, monkeypatch):
    """A function that returns what was spent up to a time, in hours after midnight."""
    cost = CostToday()

    def get(hours):
        monkeypatch.setattr(cost_today, "now", lambda: literal(after_midnight(hours), UtcDateTime()))
        with database.read() as session:
            return cost.get(session)

    return get


@pytest.fixture
def cost_at(spent_at):
    return lambda hours: pytest.approx(spent_at(hours).dollars, abs=1e-6)


@pytest.fixture
def add_job(database, submit):
    """A function that adds a job of one dollar an hour; times are in hours after midnight."""

    def add(started=None, finished=None, *, ended=None, state=JobState.SUCCEEDED):
        hours = {"started_at": started, "ended_at": ended, "finished_at": finished}
        times = {name: None if value is None else after_midnight(value) for name, value in hours.items()}
        job = submit()
        with database.write() as session:
            row = update(Job).where(Job.seq == job.seq)
            session.execute(row.values(price_per_hour=1.0, state=state, **times))
        return job

    return add


def test_the_part_of_each_run_since_midnight_costs(cost_at, add_job):
    add_job(10, 11.5, ended=11)
    add_job(-1, 0.25, ended=0.25)
    add_job(9, 9.5)
    assert cost_at(12) == 1.75
    assert cost_at(24 + 9) == 0, "the next day"


def test_free_machines_cost_their_gpu_hours(database, spent_at, add_job):
    for started, machine_type, gpus in ((-1, "A100", 2), (8, "A100", 4), (8, "H100", 1), (8, "cpu", 0)):
        job = add_job(started, started + 2)
        with database.write() as session:
            row = update(Job).where(Job.seq == job.seq)
            session.execute(row.values(price_per_hour=0.0, machine_type=machine_type, gpu_count=gpus))
    add_job(8, 9)
    for hour in (10.1, 12):
        spent = spent_at(hour)
        assert spent.dollars == pytest.approx(1)
        assert spent.gpu_hours == pytest.approx({"A100": 2 + 8, "H100": 2})


def test_a_job_that_ended_long_ago_is_read_once(database, cost_at, add_job):
    add_job(8, 9)
    assert cost_at(12) == 1
    with database.write() as session:
        session.execute(update(Job).values(price_per_hour=7.0))  # never changes; here it shows a second read
    assert cost_at(12) == 1
    assert cost_at(13) == 1


def test_jobs_that_end_between_two_calls_are_added(cost_at, add_job):
    add_job(8, 9)
    assert cost_at(12) == 1
    add_job(11, 11.995)  # committed late
    assert cost_at(12) == 1.995
    add_job(12, 13)
    assert cost_at(13) == 2.995
    assert cost_at(14) == 2.995
