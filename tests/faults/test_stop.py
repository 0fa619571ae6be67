"""Stops: of jobs that resist, and at every step of a job's life."""

import random
import signal
import time

import pytest
from support.deployment import wait_until
from support.faults.job_journal import gate, recorded
from support.faults.table import FULL, Trial, trial, tries

from core.system.failpoints import FAILPOINTS

pytestmark = [pytest.mark.faults, pytest.mark.timeout(3600 if FULL else 300)]

POINTS = [name for name in FAILPOINTS if not name.startswith("submit_")]
# Where a job has come to its own end before the stop can reach it.
OVER = {"exited", "finishing", "destroyed", "collected", "finished"}
GRACE = 2
# A shell tells of every child that was killed: it printed that, and not the job.
QUIET = "exec 2>/dev/null; "
DEAF = "trap '' TERM; say up; while :; do sleep 0.2; done"
SPLIT = 'setsid sh -c "trap : TERM; while :; do sleep 0.2; done" & setsid sleep 600 & say up; wait'
SAVING = f"trap 'say saving; sleep {GRACE / 2}; leave model saved; finish 9' TERM; say up; while :; do sleep 0.1; done"
PLAIN = "say up; exec sleep 600"
# Command, and the exit code it is shown with.
RESISTING = {"deaf": (DEAF, 137), "split": (SPLIT, 143), "saving": (SAVING, 9), "plain": (PLAIN, 143)}


@pytest.mark.parametrize("_", range(tries(1, 20)))
def test_jobs_that_resist_are_ended_and_tell_how(deployment, _):
    deployment.start_up(GRADIENT_WORKER__SLOTS="4")
    with trial("F28", deployment) as one:
        jobs = {
            how: deployment.submit(recorded(QUIET + command), stopGrace=GRACE)
            for how, (command, _) in RESISTING.items()
        }
        for job_id in jobs.values():
            wait_until(lambda job_id=job_id: b"up" in deployment.raw_log(job_id), "its first line")
        began = time.monotonic()
        for job_id in jobs.values():
            deployment.request("POST", f"/jobs/{job_id}/stop")
        one.lifted()
        ended = {how: deployment.wait_ended(job_id) for how, job_id in jobs.items()}
        assert time.monotonic() - began >= GRACE, "the deaf one had its grace"
        for how, job in ended.items():
            assert (job["state"], job["reason"], job["exitCode"]) == ("Cancelled", "stopped_by_user", RESISTING[how][1])
        assert deployment.artifact(jobs["saving"], "model") == b"saved"


def stop(deployment, job_id):
    """Ask for it until it is taken: frozen while it writes, a worker holds the row until the database ends that."""
    path = f"/jobs/{job_id}/stop"
    wait_until(lambda: deployment.request("POST", path).status_code == 200, "the stop to be taken")


def test_a_stop_at_every_step_is_honoured(shared):
    """The worker is frozen at the step, the stop is asked for, the worker goes on."""
    shared.start_api()
    with trial("F29", shared, healthy=False) as one:
        one.tries = len(POINTS)
        for name in POINTS:
            worker = shared.start_worker("one", GRADIENT_FAILPOINT=f"{name}:stop")
            own_end = name in OVER
            job_id = shared.submit(
                recorded((own_end and "say done") or "say up; sleep 600"), maxAttempts=3, stopGrace=1
            )
            wait_until(worker.frozen, f"the worker to freeze: {name}")
            stop(shared, job_id)
            worker.signal(signal.SIGCONT)
            one.lifted()
            job = shared.wait_ended(job_id)
            one.repaired()
            assert (job["state"], job["attempt"]) == ("Stopped" if own_end else "Cancelled", 1), name
            worker.signal(signal.SIGTERM)
            assert worker.wait() == 0, worker.said()


@pytest.mark.parametrize("name", ["exited", "finishing", "collected"])
def test_a_stop_while_a_failure_is_about_to_be_retried_ends_the_job(shared, name):
    shared.start_api()
    with trial("F29", shared, healthy=False):
        worker = shared.start_worker("one", GRADIENT_FAILPOINT=f"{name}:stop")
        job_id = shared.submit(recorded("say done", 3), maxAttempts=3)
        late = shared.submit(recorded("say up; sleep 600"), timeLimit=1, maxAttempts=3, stopGrace=1)
        wait_until(worker.frozen, "the worker to freeze")
        for one in (job_id, late):
            stop(shared, one)
        worker.kill()
        shared.start_worker("one")
        job = shared.wait_ended(job_id)
        assert (job["state"], job["exitCode"], job["attempt"]) == ("Failed", 3, 1)
        assert shared.wait_ended(late)["attempt"] <= 1


def test_stops_at_any_moment_race_start_end_time_limit_and_retry(shared):
    chance = random.Random(29)  # noqa: S311 - repeatable, not secret
    shared.start_api()
    for name in ("one", "two"):
        shared.start_worker(name, GRADIENT_WORKER__SLOTS="4")
    with trial("F29", shared, seconds=900) as one:
        one.tries = tries(24, 500)
        for number in range(one.tries):
            body = chance.choice(["say done", "sleep 0.2; say done", "say up; sleep 600"])
            endless = {"timeLimit": 1} if "600" in body and chance.random() < 0.5 else {}
            spec = {"stopGrace": 1, "maxAttempts": 2, **endless}
            job_id = shared.submit(recorded(body, number % 2), **spec)
            time.sleep(chance.random() * 0.3)
            stop(shared, job_id)
        one.lifted()


def test_waiting_jobs_are_cancelled_without_having_begun(shared):
    shared.start_api()
    with trial("F29", shared) as one:
        one.tries = 5
        jobs = [shared.submit(recorded(gate())) for _ in range(one.tries)]
        for job_id in jobs:
            assert shared.request("POST", f"/jobs/{job_id}/stop").json()["state"] == "Cancelled"
        shared.start_worker()
        assert shared.wait_ended(shared.submit(recorded()))["state"] == "Stopped"
    assert not [path for job_id in jobs for path in (shared.storage / "truth").glob(f"{job_id}*")]
    assert isinstance(one, Trial)
