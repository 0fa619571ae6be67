"""Workers and API are replaced, and the schema is brought up to date again, while jobs run."""

import signal

import pytest
from support.deployment import wait_until
from support.faults.fault_report import FULL_RUN, fault_trial, tries
from support.faults.job_journal import gate_command, recorded_command

pytestmark = [pytest.mark.faults, pytest.mark.timeout(3600 if FULL_RUN else 240)]


def test_every_process_is_replaced_while_jobs_run(full_deployment):
    old_api = full_deployment.start_api()
    old = full_deployment.start_worker("one", GRADIENT_WORKER__SLOTS="4")
    with fault_trial("F32", full_deployment, seconds=300) as one:
        one.tries = tries(1, 10)
        for number in range(one.tries):
            gated = recorded_command(f"say before; {gate_command(f'go{number}')}; say after; leave model weights", 3)
            jobs = [full_deployment.submit(gated) for _ in range(4)]
            waiting = full_deployment.submit(recorded_command())
            wait_until(lambda jobs=jobs: {job for job, _, _ in full_deployment.running()} >= set(jobs), "them to run")
            runs = {run for run in full_deployment.running() if run[0] in jobs}
            new = full_deployment.start_worker(f"new{number}", GRADIENT_WORKER__SLOTS="4")
            full_deployment.migrate()
            wait_until(lambda: "is ready" in new.read_log(), "the new worker")  # noqa: B023
            old.signal(signal.SIGTERM)
            assert old.wait() == 0, old.read_log()
            new_api = full_deployment.start_api()
            old_api.signal(signal.SIGTERM)
            assert old_api.wait() == 0, old_api.read_log()
            one.mark_lifted()
            assert full_deployment.wait_ended(waiting)["state"] == "Stopped", "the new worker takes what waits"
            assert {run for run in runs if run in full_deployment.running()}, "the jobs run on"
            full_deployment.open_gate(f"go{number}")
            for job_id in jobs:
                job = full_deployment.wait_ended(job_id)
                assert (job["exitCode"], job["attempt"]) == (3, 1)
            one.repaired()
            old, old_api = new, new_api
