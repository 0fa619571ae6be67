"""Clocks that jump under the service's processes, while the database's goes right."""

import time

import pytest
from support.deployment import wait_until
from support.faults.fault_report import FULL_RUN, fault_trial, tries
from support.faults.job_journal import gate_command, recorded_command

from core.db.models.jobs import Event

pytestmark = [pytest.mark.faults, pytest.mark.timeout(3600 if FULL_RUN else 300)]

# libfaketime 0.9.10 has a sleep until a time that has just passed fail (EINVAL), as the system does not.
SLEEP = """
import select, time
time.sleep = lambda seconds: select.select((), (), (), seconds) and None
"""
# With other times of their files Python would compile all modules again, for the processes beside it, too.
KEPT = {"NO_FAKE_STAT": "1", "FAKETIME_DONT_FAKE_MONOTONIC": "1", "DONT_FAKE_MONOTONIC": "1"}
HOUR = 3600
JUMPS = [24 * HOUR, -24 * HOUR, 0, HOUR, -HOUR][: tries(2, 5)]
LIMIT = 3


def test_clocks_jump_while_jobs_run(postgres_deployment, faketime, tmp_path):
    clock = tmp_path / "clock"
    clock.write_text("+0\n")
    (tmp_path / "sitecustomize.py").write_text(SLEEP)
    settings = KEPT | {
        "PYTHONPATH": str(tmp_path),
        "LD_PRELOAD": faketime,
        "FAKETIME_TIMESTAMP_FILE": str(clock),
        "FAKETIME_CACHE_DURATION": "1",
    }
    postgres_deployment.start_api(**settings)
    postgres_deployment.start_worker("one", GRADIENT_WORKER__SLOTS="4", **settings)
    with fault_trial("F19", postgres_deployment, seconds=300) as one:
        one.tries = tries(1, 10) * len(JUMPS)
        for number in range(one.tries):
            running = postgres_deployment.submit(
                recorded_command(f"say before; {gate_command(f'go{number}')}; say after", 3)
            )
            submitted = time.monotonic()
            limited = postgres_deployment.submit(recorded_command("say up; sleep 600"), timeLimit=LIMIT, stopGrace=1)
            wait_until(
                lambda one=running, two=limited: (
                    b"before" in postgres_deployment.raw_log(one) and b"up" in postgres_deployment.raw_log(two)
                ),
                "both to run",
            )
            clock.write_text(f"{JUMPS[number % len(JUMPS)]:+d}\n")
            fresh = postgres_deployment.submit(recorded_command("say done"))
            postgres_deployment.wait_ended(fresh)
            job = postgres_deployment.wait_ended(limited)
            assert time.monotonic() - submitted >= LIMIT, "not before its time"
            assert (job["state"], job["reason"]) == ("Failed", "time_limit")
            assert postgres_deployment.job(running)["state"] == "Running"
            one.mark_lifted()
            postgres_deployment.open_gate(f"go{number}")
            job = postgres_deployment.wait_ended(running)
            one.repaired()
            assert (job["exitCode"], job["attempt"]) == (3, 1)
    assert [event for event in postgres_deployment.rows(Event)[0] if event["kind"] == "adopted"] == []


@pytest.mark.parametrize("jump", ["+1h", pytest.param("-1h", marks=pytest.mark.slow)])
def test_a_clock_that_is_set_while_the_worker_is_away_costs_a_job_nothing(deployment, faketime, jump):
    """On SQLite the database's clock is the machine's."""
    deployment.start_up().kill()
    server = deployment.start_up()
    job_id = deployment.submit(recorded_command("say up; sleep 600"), timeLimit=600)
    wait_until(lambda: b"up" in deployment.raw_log(job_id), "it to run")
    server.kill()
    deployment.start_up(**KEPT, LD_PRELOAD=faketime, FAKETIME=jump)
    wait_until(lambda: 0 < deployment.job(job_id)["durationSeconds"] < HOUR / 2, "its true running time")
    assert deployment.job(job_id)["state"] == "Running"
    deployment.request("POST", f"/jobs/{job_id}/stop?now=true")
    ended = deployment.wait_ended(job_id)
    assert (ended["state"], ended["reason"]) == ("Cancelled", "stopped_by_user")
    assert 0 < ended["durationSeconds"] < HOUR / 2
    assert ended["cost"] < 0.05
