"""A command that ends while its worker is away, or cannot record it, has run as long as it has."""

import time

import pytest
from support.deployment import wait_until

from core.db.database import Database
from core.errors import StoreUnavailable
from core.jobs import lifecycle, queries
from worker.attempt.control import AttemptControl
from worker.attempt.pipeline import AttemptRun, run_attempt
from worker.runner.control_files import read_exit_code

pytestmark = pytest.mark.integration

AWAY_SECONDS = 3.0
SHORT_SECONDS = 2.0  # a command of no time at all, on a busy machine


@pytest.fixture
def database(sqlite_database: Database):
    return sqlite_database


def running_time(host, job):
    """Return how long a job ran, by its row; its attempt and its events say the same."""
    with host.database.read() as session:
        row, (attempt,) = queries.get_row(session, job.id), queries.attempts(session, job.id)
        events = {event.kind: event.at for event in queries.events(session, job.id)}
    assert (attempt.started_at, attempt.ended_at) == (row.started_at, row.ended_at)
    assert (events["started"], events["ended"]) == (row.started_at, row.ended_at)
    return (row.ended_at - row.started_at).total_seconds()


def await_exit(host, job):
    control = host.scratch(job.id, 1).control
    wait_until(lambda: read_exit_code(control) is not None, "the command to end")
    time.sleep(AWAY_SECONDS)


@pytest.mark.parametrize("clock", [0, 3600, -3600])
def test_a_command_that_ends_while_its_worker_is_away(host, claim, monkeypatch, clock):
    job = claim("true")
    AttemptRun(host, job, AttemptControl()).start()
    await_exit(host, job)
    true_time = time.time
    (adopted,) = host.write(
        lambda session: lifecycle.adopt(session, "w2", "here", backends=["process"], stale_seconds=-10)
    )
    monkeypatch.setattr(time, "time", lambda: true_time() + clock)
    run_attempt(host, adopted, AttemptControl())
    if clock:
        assert AWAY_SECONDS <= running_time(host, job) < 60, "until it was seen"
    else:
        assert running_time(host, job) < SHORT_SECONDS


@pytest.mark.parametrize("step", ["mark_running", "mark_finishing"])
def test_a_command_that_ends_while_the_database_is_away(host, claim, monkeypatch, step):
    record, until = getattr(lifecycle, step), []

    def refuse(*arguments, **options):
        until.append(until[0] if until else time.monotonic() + AWAY_SECONDS)
        if time.monotonic() < until[0]:
            raise StoreUnavailable("the database does not answer")
        return record(*arguments, **options)

    monkeypatch.setattr(lifecycle, step, refuse)
    monkeypatch.setattr("worker.attempt.record.DATABASE_PAUSE_SECONDS", 0.1)
    job = claim("true")
    run_attempt(host, job, AttemptControl())
    assert len(until) > 1
    assert 0 <= running_time(host, job) < SHORT_SECONDS
