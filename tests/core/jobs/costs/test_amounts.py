"""Costs of jobs, held beside sums in plain Python: all attempts, a period's part of each, machines in a cloud."""

import random
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import insert, update

from core.db.models.jobs import Attempt, Job
from core.jobs.cloud_resources import CloudResource
from core.jobs.costs import amounts
from core.jobs.costs.report import report
from core.jobs.states import JobState
from core.search.computed_columns import parse_order

MIDNIGHT = datetime(2026, 3, 5, tzinfo=UTC)


def after_midnight(hours):
    return None if hours is None else MIDNIGHT + timedelta(hours=hours)


@pytest.fixture
def cost_at(database, clock):
    def get(hours, since=0, unit="usd"):
        clock.seconds = hours * 3600
        with database.read() as session:
            spent = amounts.spent(session, unit, "all", "", after_midnight(since))
        return pytest.approx(spent, abs=1e-5)

    return get


@pytest.fixture
def add_job(database, submit):
    """A function that adds a job of one dollar and two GPU hours an hour; its attempts are pairs of hours."""

    def add(*attempts, finished=None, machines=()):
        job = submit()
        ended = attempts[-1][1] if attempts else None
        states = {"state": JobState.RUNNING if finished is None else JobState.SUCCEEDED, "attempt": len(attempts)}
        times = {"started_at": attempts[-1][0], "ended_at": ended, "finished_at": finished}
        with database.write() as session:
            row = update(Job).where(Job.seq == job.seq).values(price_per_hour=1.0, gpu_count=2, **states)
            session.execute(row.values({name: after_midnight(hours) for name, hours in times.items()}))
            for number, (start, end) in enumerate(attempts, 1):
                of_job = {"job_id": job.id, "attempt": number, "worker": "w", "host": "h", "claimed_at": MIDNIGHT}
                moments = {"started_at": after_midnight(start), "ended_at": after_midnight(end)}
                session.execute(insert(Attempt).values(**of_job, **moments))
            for number, (billed, gone, price) in enumerate(machines):
                of_job = {"job_id": job.id, "attempt": 1, "host": "h", "kind": "tpu_node", "state": "READY"}
                billing = {"billed_at": after_midnight(billed), "gone_at": after_midnight(gone)}
                named = {"name": f"{job.id}-{number}", "price_per_hour": price}
                session.execute(insert(CloudResource).values(**of_job, **billing, **named, intended_at=MIDNIGHT))
        return job

    return add


def test_the_part_of_each_run_since_midnight_costs(cost_at, add_job):
    add_job((10, 11), finished=11.5)
    add_job((-1, 0.25), finished=0.25)
    add_job((1, 1.5), (9, None), finished=9.5)
    add_job((11, None))
    assert cost_at(12) == 1 + 0.25 + 0.5 + 0.5 + 1
    assert cost_at(12, unit="gpu_hours") == 6.5
    assert cost_at(24 + 9, since=24) == 9, "the next day only the job that still runs costs"


def test_a_job_that_ended_long_ago_is_read_once(database, cost_at, add_job):
    add_job((8, 9), finished=9)
    assert cost_at(12) == 1
    with database.write() as session:
        session.execute(update(Job).values(price_per_hour=7.0))  # never changes; here it shows a second read
    assert cost_at(12) == 1
    assert cost_at(13) == 1


def test_jobs_that_end_between_two_calls_are_added(cost_at, add_job):
    add_job((8, 9), finished=9)
    assert cost_at(12) == 1
    add_job((11, 11.995), finished=11.995)  # committed late
    assert cost_at(12) == 1.995
    add_job((12, 13), finished=13)
    assert cost_at(13) == 2.995
    assert cost_at(14) == 2.995


def test_a_machine_in_a_cloud_costs_until_it_is_gone_and_not_the_running_time(database, cost_at, clock, add_job):
    job = add_job((8, 9), finished=9, machines=[(7, None, None), (6, 6.5, 4.0)])
    assert cost_at(12) == 5 + 2
    clock.seconds = 12 * 3600
    with database.read() as session:
        dollars, hours = amounts.of_jobs(session, [job.id])[job.id]
        assert (round(dollars, 6), round(hours, 6)) == (7, 2)
        assert session.query(Job).order_by(*parse_order(session, "cost").columns(backwards=False)).one().id == job.id


def test_sums_equal_those_of_plain_python(cost_at, add_job):
    """Jobs at random, at times in any order; each job is summed attempt by attempt."""
    choose, jobs = random.Random(53), []  # noqa: S311 - of a test
    for _ in range(40):
        times = sorted(choose.uniform(-30, 40) for _ in range(2 * choose.randint(1, 3)))
        attempts = list(zip(times[::2], times[1::2], strict=True))
        add_job(*attempts, finished=attempts[-1][1])
        jobs.append(attempts)
    for at, since in ((41, 0), (41, 24), (45, 24), (50, -100)):
        expected = sum(max(0, end - max(start, since)) for attempts in jobs for start, end in attempts)
        assert cost_at(at, since) == expected
        assert cost_at(at, since, "gpu_hours") == 2 * expected


def test_each_day_has_its_part_of_runs_and_of_machines(database, clock, add_job):
    add_job((-30, -20), finished=-20)
    add_job((-1, 2), finished=2)
    add_job((1, None))
    add_job((3, 4), finished=4, machines=[(-2, 5, 3.0)])
    with database.write() as session:
        session.execute(update(Job).values(created_at=after_midnight(-40)))
    clock.seconds = 12 * 3600
    with database.read() as session:
        rows = report(session, "day", 4)
    dollars, hours = [0, 6, 4 + 1 + 6, 2 + 11 + 15], [0, 12, 8 + 2, 4 + 22 + 2]
    assert [row.cost + row.simulated_cost for row in rows] == pytest.approx(dollars, abs=1e-5)
    assert [row.gpu_hours for row in rows] == pytest.approx(hours, abs=1e-5)
    assert [(row.name, row.jobs) for row in rows[1:]] == [("2026-03-03", 1), ("2026-03-04", 2), ("2026-03-05", 3)]
