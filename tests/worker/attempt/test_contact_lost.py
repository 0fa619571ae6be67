"""Attempts on a host that is cut off from the database: what others may start again is ended, and counts so."""

import pytest
from support.deployment import wait_until

from core.db.database import Database
from core.jobs import lifecycle, queries
from core.jobs.states import JobState
from worker.attempt.control import AttemptControl
from worker.attempt.monitor import JobMonitor
from worker.attempt.pipeline import AttemptRun, run_attempt
from worker.attempt.self_fence import SelfFence
from worker.runner.control_files import read_exit_code

pytestmark = pytest.mark.integration


@pytest.fixture
def database(sqlite_database: Database):
    return sqlite_database


def outcome(host, job):
    """Return the job's row, and that of its only attempt."""
    with host.database.read() as session:
        (attempt,) = queries.attempts(session, job.id)
        return queries.get_row(session, job.id), attempt


def test_a_job_that_was_cut_off_from_its_record_is_tried_again(host, claim, monkeypatch):
    run = JobMonitor.run

    def run_once_it_says_something(watch):
        wait_until((watch.control / "log").read_bytes, "the output")
        signals.report_contact_lost()
        return run(watch)

    monkeypatch.setattr(JobMonitor, "run", run_once_it_says_something)
    job = claim("echo said; sleep 100", max_attempts=2)
    signals = AttemptControl()
    run_attempt(host, job, signals)
    row, attempt = outcome(host, job)
    assert (row.state, row.machine_faults) == (JobState.QUEUED, 1)
    assert (attempt.reason, attempt.exit_code) == ("lost_contact", 143)


def test_a_job_that_was_cut_off_before_its_start_was_recorded_never_began(host, claim):
    """It has no retries, and is started again all the same."""
    job, signals = claim("sleep 100"), AttemptControl()
    signals.report_contact_lost()
    run_attempt(host, job, signals)
    row, attempt = outcome(host, job)
    assert (row.state, row.machine_faults, attempt.reason) == (JobState.QUEUED, 1, "lost_contact")
    assert host.backend("process").owned() == []


def test_a_worker_that_adopts_a_job_knows_that_it_was_cut_off(host, claim):
    """It saved its work and exited with 0, because it was asked to end: it is not done."""
    job = claim("trap 'exit 0' TERM; echo ready; while :; do sleep 0.05; done", max_attempts=2)
    cut_off = AttemptRun(host, job, AttemptControl())
    cut_off.start()
    control = host.scratch(job.id, 1).control
    wait_until(lambda: (control / "log").exists() and (control / "log").read_bytes(), "the output")
    fence = SelfFence(host)
    fence.record_contact(-1e6)
    fence.check([(cut_off.job, AttemptControl())])
    wait_until(lambda: read_exit_code(control) is not None, "the end")
    adopted = host.write(lambda session: lifecycle.adopt(session, "w1", "here", backends=["process"], stale_seconds=60))
    run_attempt(host, adopted[0], AttemptControl())
    row, attempt = outcome(host, job)
    assert (row.state, attempt.reason, attempt.exit_code) == (JobState.QUEUED, "lost_contact", 0)
