"""Stops: of jobs that resist, and at every step of a job's life."""

import random
import signal
import time

import psycopg
import pytest
from support.deployment import wait_until
from support.faults.fault_report import FULL_RUN, fault_trial, tries
from support.faults.job_journal import recorded_command

from core.system.failpoints import ATTEMPT_FAILPOINTS

pytestmark = [pytest.mark.faults, pytest.mark.timeout(3600 if FULL_RUN else 300)]

# Where a job has come to its own end before the stop can reach it.
OVER = {"exited", "finishing", "destroyed", "collected", "finished"}
GRACE = 2
# A shell tells of every child that was killed: it printed that, and not the job.
QUIET = "exec 2>/dev/null; "
DEAF = "trap '' TERM; say up; while :; do sleep 0.2; done"
SPLIT = 'setsid sh -c "trap : TERM; while :; do sleep 0.2; done" & setsid sleep 600 & say up; wait'
SAVING = f"trap 'say saving; sleep {GRACE / 2}; leave model saved; finish 9' TERM; say up; while :; do sleep 0.1; done"
END_IDLE_TRANSACTIONS = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() "
    "AND state LIKE 'idle in transaction%' AND state_change < now() - interval '2 seconds'"
)
PLAIN = "say up; exec sleep 600"
# Command, and the exit code it is shown with.
RESISTING = {"deaf": (DEAF, 137), "split": (SPLIT, 143), "saving": (SAVING, 9), "plain": (PLAIN, 143)}


@pytest.mark.parametrize("_", range(tries(1, 20)))
def test_jobs_that_resist_are_ended_and_tell_how(deployment, _):
    deployment.start_up(GRADIENT_WORKER__SLOTS="4")
    with fault_trial("F28", deployment) as one:
        jobs = {
            # Whoever ends by itself has the time that a busy machine takes.
            how: deployment.submit(recorded_command(QUIET + command), stopGrace=60 if how == "saving" else GRACE)
            for how, (command, _) in RESISTING.items()
        }
        for job_id in jobs.values():
            wait_until(lambda job_id=job_id: b"up" in deployment.raw_log(job_id), "its first line")
        began = time.monotonic()
        for job_id in jobs.values():
            deployment.request("POST", f"/jobs/{job_id}/stop")
        one.mark_lifted()
        ended = {how: deployment.wait_ended(job_id) for how, job_id in jobs.items()}
        assert time.monotonic() - began >= GRACE, "the deaf one had its grace"
        for how, job in ended.items():
            assert (job["state"], job["reason"], job["exitCode"]) == ("Cancelled", "stopped_by_user", RESISTING[how][1])
        assert deployment.artifact(jobs["saving"], "model") == b"saved"


def test_a_job_whose_worker_dies_while_it_stops_it_is_asked_again_and_saves(deployment):
    deployment.start_api()
    with fault_trial("F2", deployment) as one:
        worker = deployment.start_worker(GRADIENT_FAILPOINT="stop_suspended")
        job_id = deployment.submit(recorded_command(QUIET + SAVING), stopGrace=60)
        wait_until(lambda: b"up" in deployment.raw_log(job_id), "its first line")
        deployment.request("POST", f"/jobs/{job_id}/stop")
        assert worker.wait() == -signal.SIGKILL, worker.read_log()
        one.mark_lifted()
        deployment.start_worker()
        job = deployment.wait_ended(job_id)
        one.repaired()
        assert (job["state"], job["reason"], job["exitCode"]) == ("Cancelled", "stopped_by_user", 9)
        assert deployment.artifact(job_id, "model") == b"saved"


def stop(deployment, job_id):
    """Ask for it until it is taken: frozen while it writes, a worker holds the row until the database ends that.

    That takes the database 30 seconds, which are cut short here.
    """

    def is_taken():
        if deployment.request("POST", f"/jobs/{job_id}/stop").status_code == 200:
            return True
        with psycopg.connect(deployment.database_url, autocommit=True) as connection:
            connection.execute(END_IDLE_TRANSACTIONS)
        return False

    wait_until(is_taken, "the stop to be taken")


def test_a_stop_at_every_step_is_honoured(postgres_deployment):
    """The worker is frozen at the step, the stop is asked for, the worker goes on."""
    postgres_deployment.start_api()
    with fault_trial("F29", postgres_deployment, healthy=False) as one:
        one.tries = len(ATTEMPT_FAILPOINTS)
        for name in ATTEMPT_FAILPOINTS:
            worker = postgres_deployment.start_worker("one", GRADIENT_FAILPOINT=f"{name}:stop")
            own_end = name in OVER
            job_id = postgres_deployment.submit(
                recorded_command((own_end and "say done") or "say up; sleep 600"), maxAttempts=3, stopGrace=1
            )
            wait_until(worker.frozen, f"the worker to freeze: {name}")
            stop(postgres_deployment, job_id)
            worker.signal(signal.SIGCONT)
            one.mark_lifted()
            job = postgres_deployment.wait_ended(job_id)
            one.repaired()
            assert (job["state"], job["attempt"]) == ("Stopped" if own_end else "Cancelled", 1), name
            worker.signal(signal.SIGTERM)
            assert worker.wait() == 0, worker.read_log()


@pytest.mark.parametrize(
    "name", ["exited", *(pytest.param(name, marks=pytest.mark.slow) for name in ("finishing", "collected"))]
)
def test_a_stop_while_a_failure_is_about_to_be_retried_ends_the_job(postgres_deployment, name):
    postgres_deployment.start_api()
    with fault_trial("F29", postgres_deployment, healthy=False):
        worker = postgres_deployment.start_worker("one", GRADIENT_FAILPOINT=f"{name}:stop")
        job_id = postgres_deployment.submit(recorded_command("say done", 3), maxAttempts=3)
        late = postgres_deployment.submit(
            recorded_command("say up; sleep 600"), timeLimit=1, maxAttempts=3, stopGrace=1
        )
        wait_until(worker.frozen, "the worker to freeze")
        for one in (job_id, late):
            stop(postgres_deployment, one)
        worker.kill()
        postgres_deployment.start_worker("one")
        job = postgres_deployment.wait_ended(job_id)
        assert (job["state"], job["exitCode"], job["attempt"]) == ("Failed", 3, 1)
        assert postgres_deployment.wait_ended(late)["attempt"] <= 1


def test_stops_at_any_moment_race_start_end_time_limit_and_retry(postgres_deployment):
    chance = random.Random(29)  # noqa: S311 - repeatable, not secret
    postgres_deployment.start_api()
    for name in ("one", "two"):
        postgres_deployment.start_worker(name, GRADIENT_WORKER__SLOTS="4")
    with fault_trial("F29", postgres_deployment, seconds=900) as one:
        one.tries = tries(12, 500)
        for number in range(one.tries):
            body = chance.choice(["say done", "sleep 0.2; say done", "say up; sleep 600"])
            endless = {"timeLimit": 1} if "600" in body and chance.random() < 0.5 else {}
            spec = {"stopGrace": 1, "maxAttempts": 2, **endless}
            job_id = postgres_deployment.submit(recorded_command(body, number % 2), **spec)
            time.sleep(chance.random() * 0.3)
            stop(postgres_deployment, job_id)
        one.mark_lifted()
