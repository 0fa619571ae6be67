"""Kill, or freeze, the process at every named point: the job runs once, and nothing of it is lost."""

import json
import signal

import pytest
from support.deployment import wait_until
from support.faults.fault_report import FULL_RUN, fault_trial, tries
from support.faults.job_journal import recorded_command

from core.catalogue.machine_types import Catalogue
from core.system.failpoints import ATTEMPT_FAILPOINTS, FAILPOINTS, failpoint

SUBMITTING = sorted(name for name in FAILPOINTS if name.startswith("submit_"))
RUNNING = sorted(ATTEMPT_FAILPOINTS)
FROZEN = {"launched", "collected"}  # the others: make test-all
assert set(RUNNING) >= FROZEN
MACHINES = [machine.name for machine in Catalogue.load() if machine.backend != "tpu"]
assert len(MACHINES) >= len(RUNNING)
LINES = 300
# Prints, leaves a file and a metric, and ends with a code of its own.
COMMAND = recorded_command(
    f"""
i=0; while [ $i -lt {LINES} ]; do i=$((i+1)); say "line $i"; done
leave model 'the model'
echo '{{"step": 1, "loss": 0.5}}' >>"$GRADIENT_METRICS_FILE"
""",
    7,
)

pytestmark = [pytest.mark.faults, pytest.mark.timeout(3600 if FULL_RUN else 300)]


def check_outcome(deployment, job_id):
    """Check the facts about this job that the history checker does not know."""
    job = deployment.wait_ended(job_id)
    assert (job["state"], job["exitCode"], job["attempt"]) == ("Failed", 7, 1), job
    series = deployment.request("GET", f"/jobs/{job_id}/metrics?name=loss").json()["series"]
    assert [[point["value"] for point in one["points"]] for one in series] == [[0.5]]
    assert deployment.artifact(job_id, "model") == b"the model"


def start_at(deployment, points, how=""):
    """Start a worker for each failpoint, with a machine type of its own and a job for it; return both."""
    workers, jobs = [], []
    for name, machine in zip(points, MACHINES, strict=False):
        settings = {
            "GRADIENT_FAILPOINT": name + how,
            "GRADIENT_WORKER__MACHINE_TYPES": json.dumps([machine]),
            "GRADIENT_WORKER__LEASE_SECONDS": "600",  # none takes over a job of the others
        }
        workers.append(deployment.start_worker(f"at-{name}-{len(deployment.accepted)}", **settings))
        jobs.append(deployment.submit(COMMAND, machineType=machine))
    return workers, jobs


def test_workers_killed_at_every_point_lose_nothing(deployment):
    deployment.start_api()
    with fault_trial("F3", deployment, seconds=240) as one:
        one.tries = tries(1, 40) * len(RUNNING)
        for _ in range(tries(1, 40)):
            doomed, jobs = start_at(deployment, RUNNING)
            for worker in doomed:
                assert worker.wait() == -signal.SIGKILL, worker.read_log()
            one.mark_lifted()
            heir = deployment.start_worker("heir", GRADIENT_WORKER__SLOTS="4")
            for job_id in jobs:
                check_outcome(deployment, job_id)
            wait_until(lambda: deployment.scratch() == [], "the scratch directories to go")
            one.repaired()
            heir.signal(signal.SIGTERM)
            heir.wait()


@pytest.mark.parametrize(
    "names", [FROZEN, pytest.param(set(RUNNING) - FROZEN, marks=pytest.mark.slow)], ids=["", "more"]
)
def test_frozen_workers_do_no_harm_when_they_wake(postgres_deployment, names):
    postgres_deployment.start_api()
    with fault_trial("F5", postgres_deployment, seconds=240) as one:
        one.tries = tries(1, 10) * len(names)
        for _ in range(tries(1, 10)):
            zombies, jobs = start_at(postgres_deployment, sorted(names), ":stop")
            for zombie in zombies:
                wait_until(zombie.frozen, "the worker to freeze")
            one.mark_lifted()
            heir = postgres_deployment.start_worker("heir", GRADIENT_WORKER__SLOTS="4")
            ended = [postgres_deployment.wait_ended(job_id) for job_id in jobs]
            one.repaired()
            events = [postgres_deployment.events(job_id) for job_id in jobs]
            for zombie in zombies:
                zombie.signal(signal.SIGCONT)
                zombie.signal(signal.SIGTERM)
                assert zombie.wait() == 0, zombie.read_log()
            assert [postgres_deployment.job(job_id) for job_id in jobs] == ended
            assert [postgres_deployment.events(job_id) for job_id in jobs] == events
            for job_id in jobs:
                check_outcome(postgres_deployment, job_id)
            # A folder that a zombie recreated when it woke belongs to no attempt: the next worker's sweep finds it.
            wait_until(lambda: postgres_deployment.scratch() == [], "the scratch directories to go")
            heir.signal(signal.SIGTERM)
            heir.wait()


@pytest.mark.parametrize("name", SUBMITTING)
def test_an_api_killed_while_it_answers_makes_one_job(deployment, name):
    with fault_trial("F1", deployment) as one:
        one.tries = tries(1, 100)
        for number in range(one.tries):
            doomed = deployment.start_api(GRADIENT_FAILPOINT=name)
            with pytest.raises(Exception, match=r"disconnected|reset|refused"):
                post(deployment, f"once{number}", retry=False)
            assert doomed.wait() == -signal.SIGKILL
            one.mark_lifted()
            api = deployment.start_api()
            answers = [post(deployment, f"once{number}") for _ in range(3)]
            one.repaired()
            assert len({answer.json()["id"] for answer in answers}) == 1
            expected = 200 if name == "submit_after_commit" else 201
            assert [answer.status_code for answer in answers] == [expected, 200, 200]
            assert len(deployment.request("GET", "/jobs?limit=500").json()["jobs"]) == number + 1
            deployment.accepted.append((answers[0].json()["id"], f"once{number}"))
            if number + 1 < one.tries:
                api.kill()
        deployment.start_worker()


@pytest.mark.parametrize("name", SUBMITTING)
def test_an_api_killed_during_the_submission_of_an_array_makes_all_of_its_jobs_or_none(deployment, name):
    with fault_trial("F1", deployment) as one:
        one.tries = tries(1, 20)
        for number in range(one.tries):
            key = f"array{number}"
            doomed = deployment.start_api(GRADIENT_FAILPOINT=name)
            with pytest.raises(Exception, match=r"disconnected|reset|refused"):
                post(deployment, key, array="0-2", retry=False)
            assert doomed.wait() == -signal.SIGKILL
            one.mark_lifted()
            api = deployment.start_api()
            found = deployment.request("GET", "/jobs?limit=500").json()["jobs"]
            committed = name == "submit_after_commit"
            assert len(found) == 3 * (number + committed)
            answers = [post(deployment, key, array="0-2") for _ in range(2)]
            one.repaired()
            assert [answer.status_code for answer in answers] == [200 if committed else 201, 200]
            first, again = (answer.json()["id"] for answer in answers)
            assert first == again
            deployment.accepted.append((first, key))
            if number + 1 < one.tries:
                api.kill()
        deployment.start_worker()
        deployment.wait_all_ended(expected=3 * one.tries)


def post(deployment, key, array=None, **options):
    body = {"machineType": "CPU", "command": recorded_command(), "array": array}
    return deployment.request("POST", "/jobs", json=body, headers={"Idempotency-Key": key}, **options)


def test_a_point_that_is_not_listed_is_refused():
    with pytest.raises(KeyError):
        failpoint("nowhere")
