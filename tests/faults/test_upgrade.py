"""Workers and API are replaced, and the schema is brought up to date again, while jobs run."""

import signal

import pytest
from support.deployment import wait_until
from support.faults.job_journal import gate, recorded
from support.faults.table import FULL, trial, tries

pytestmark = [pytest.mark.faults, pytest.mark.timeout(3600 if FULL else 240)]


def test_every_process_is_replaced_while_jobs_run(parts):
    old_api = parts.start_api()
    old = parts.start_worker("one", GRADIENT_WORKER__SLOTS="4")
    with trial("F32", parts, seconds=300) as one:
        one.tries = tries(2, 10)
        for number in range(one.tries):
            gated = recorded(f"say before; {gate(f'go{number}')}; say after; leave model weights", 3)
            jobs = [parts.submit(gated) for _ in range(4)]
            waiting = parts.submit(recorded())
            wait_until(lambda jobs=jobs: {job for job, _, _ in parts.running()} >= set(jobs), "them to run")
            runs = {run for run in parts.running() if run[0] in jobs}
            new = parts.start_worker(f"new{number}", GRADIENT_WORKER__SLOTS="4")
            parts.migrate()
            wait_until(lambda: "is ready" in new.said(), "the new worker")  # noqa: B023
            old.signal(signal.SIGTERM)
            assert old.wait() == 0, old.said()
            new_api = parts.start_api()
            old_api.signal(signal.SIGTERM)
            assert old_api.wait() == 0, old_api.said()
            one.lifted()
            assert parts.wait_ended(waiting)["state"] == "Stopped", "the new worker takes what waits"
            assert {run for run in runs if run in parts.running()}, "the jobs run on"
            parts.open_gate(f"go{number}")
            for job_id in jobs:
                job = parts.wait_ended(job_id)
                assert (job["exitCode"], job["attempt"]) == (3, 1)
            one.repaired()
            old, old_api = new, new_api
