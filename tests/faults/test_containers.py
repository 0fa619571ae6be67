"""Jobs in containers while their engine dies, hangs, refuses or has its containers taken away."""

import random
import time

import pytest
from support.deployment import wait_until
from support.faults.container_jobs_deployment import recorded_in_container as recorded
from support.faults.fault_report import FULL_RUN, fault_trial, tries
from support.faults.job_journal import gate_command
from support.faults.proxy import EngineProxy

pytestmark = [pytest.mark.faults, pytest.mark.timeout(7200 if FULL_RUN else 300)]


def begun(deployment, job_id, sign=b"up"):
    wait_until(lambda: sign in deployment.raw_log(job_id), f"{sign!r} in the log of {job_id}")


# More than a pipe holds: a job that waits for a reader would not come to its end.
LOUD = "yes 0123456789abcdef0123456789abcdef | head -n 20000 >loud; cat loud; cat loud >>$truth.out"


def test_jobs_that_run_and_jobs_that_start_outlive_a_killed_engine(make_container_deployment, killable_engine):
    """Those that run end without it, and are told by their files."""
    deployment = make_container_deployment(killable_engine, GRADIENT_WORKER__SLOTS="6")
    deployment.start_up()
    chance = random.Random(11)  # noqa: S311 - repeatable, not secret
    with fault_trial("F11", deployment, seconds=300) as one:
        one.tries = tries(1, 20)
        for number in range(one.tries):
            body = f"say up; {gate_command(f'go{number}')}; {LOUD}; leave model weights; say done"
            running = [deployment.submit(recorded(body, 5)) for _ in range(2)]
            for job_id in running:
                begun(deployment, job_id)
            starting = [deployment.submit(recorded("say up; sleep 0.3; say done", 6)) for _ in range(4)]
            time.sleep(chance.random() * 1.5)
            killable_engine.kill()
            deployment.open_gate(f"go{number}")
            for job_id in running:
                begun(deployment, job_id, b"done\n")
            assert {deployment.job(job_id)["state"] for job_id in running} == {"Running"}
            killable_engine.start()
            one.mark_lifted()
            jobs = [deployment.wait_ended(job_id, 120) for job_id in running + starting]
            one.repaired()
            assert [job["exitCode"] for job in jobs] == [5, 5, 6, 6, 6, 6], jobs
            assert [(job["attempt"], job["artifactsState"]) for job in jobs[:2]] == [(1, "complete")] * 2


def outside(deployment, action, job_id):
    """Act on a job's container as somebody with a shell on its host could."""
    with deployment.server.client() as client:
        getattr(client, action)(f"gradient-{job_id}-1")


def test_containers_that_somebody_else_takes_away(container_deployment):
    container_deployment.start_up(GRADIENT_WORKER__SLOTS="8")
    with fault_trial("F12", container_deployment, seconds=300) as one:
        one.tries = tries(1, 10)
        for _ in range(one.tries):
            waits = recorded("leave model weights; say up; while :; do sleep 0.1; done")
            # Removal kills first: whether the kill or the removal is seen is a matter of moments.
            jobs = {how: container_deployment.submit(waits, stopGrace=2) for how in ("kill", "remove", "stop", "pause")}
            again = container_deployment.submit(
                recorded('say up; [ "$GRADIENT_ATTEMPT" = 2 ] || sleep 600'), maxAttempts=2
            )
            for job_id in (*jobs.values(), again):
                begun(container_deployment, job_id)
            with container_deployment.server.client() as client:
                client.remove_container(f"gradient-{jobs['remove']}-1", force=True)
                client.remove_container(f"gradient-{again}-1", force=True)
            for how in ("kill", "stop", "pause"):
                outside(container_deployment, how, jobs[how])
            container_deployment.request("POST", f"/jobs/{jobs['pause']}/stop")
            one.mark_lifted()
            ended = {how: container_deployment.wait_ended(job_id, 120) for how, job_id in jobs.items()}
            one.repaired()
            assert {how: (job["state"], job["reason"]) for how, job in ended.items()} == {
                "kill": ("Failed", "process_lost"),
                "remove": ("Error", "process_lost"),
                "stop": ("Failed", "signalled"),
                "pause": ("Cancelled", "stopped_by_user"),
            }
            assert {container_deployment.artifact(job_id, "model") for job_id in jobs.values()} == {b"weights"}
            job = container_deployment.wait_ended(again, 120)
            assert (job["exitCode"], job["attempt"]) == (0, 2), job


@pytest.fixture
def moody(docker_server):
    """The engine's address, to be slowed down, silenced and upset."""
    proxy = EngineProxy(str(docker_server.socket))
    yield proxy
    proxy.close()


def test_a_slow_engine_and_a_silent_one_cost_no_job(make_container_deployment, docker_server, moody):
    deployment = make_container_deployment(
        docker_server, moody.address, **{"worker.backends.docker.engine.client.TIMEOUT_SECONDS": 2}
    )
    deployment.start_up(GRADIENT_WORKER__SLOTS="4")
    with fault_trial("F13", deployment, seconds=300, healthy=False) as one:
        one.tries = tries(1, 10)
        for number in range(one.tries):
            moody.delay = 0.2
            running = [
                deployment.submit(recorded(f"say up; {gate_command(f'go{number}')}; say done", 4)) for _ in range(2)
            ]
            stopped = deployment.submit(recorded("say up; while :; do sleep 0.1; done"), stopGrace=1)
            for job_id in (*running, stopped):
                begun(deployment, job_id)
            moody.delay = 0.0
            moody.shut()
            starting = deployment.submit(recorded("say done", 5))
            deployment.open_gate(f"go{number}")
            deployment.request("POST", f"/jobs/{stopped}/stop")
            wait_until(lambda: not deployment.running(), "the jobs to end in the dark, the stopped one too")
            moody.open()
            one.mark_lifted()
            ended = [deployment.wait_ended(job_id, 120) for job_id in (*running, starting, stopped)]
            one.repaired()
            assert [job["exitCode"] for job in ended[:3]] == [4, 4, 5], ended
            assert ended[3]["state"] == "Cancelled"


@pytest.mark.slow  # worker/backends/docker/test_faults.py has such engines
def test_an_engine_that_refuses_and_loses_answers_costs_no_job(make_container_deployment, docker_server, moody):
    deployment = make_container_deployment(docker_server, moody.address)
    deployment.start_up(GRADIENT_WORKER__SLOTS="4")
    with fault_trial("F13", deployment, seconds=600, healthy=False) as one:
        one.tries = tries(1, 10)
        for number in range(one.tries):
            running = deployment.submit(
                recorded(f"say up; {gate_command(f'go{number}')}; leave model weights; say done", 4)
            )
            stopped = deployment.submit(recorded("say up; while :; do sleep 0.1; done"), stopGrace=1)
            for job_id in (running, stopped):
                begun(deployment, job_id)
            moody.refused_share = 1.0
            deployment.request("POST", f"/jobs/{stopped}/stop")
            deployment.open_gate(f"go{number}")
            wait_until(lambda: not deployment.running(), "both to end while the engine refuses everything")
            moody.refused_share, moody.lost_share = 0.1, 0.1
            starting = [deployment.submit(recorded("say done", 5)) for _ in range(tries(2, 12))]
            for job_id in (running, stopped, *starting):
                deployment.wait_ended(job_id, 300)
            moody.refused_share = moody.lost_share = 0.0
            one.mark_lifted()
            codes = [deployment.job(job_id)["exitCode"] for job_id in (running, *starting)]
            assert codes == [4] + [5] * len(starting)
            assert deployment.job(stopped)["state"] == "Cancelled"
