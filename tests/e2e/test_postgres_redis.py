"""The service in parts, as docker-compose.yml starts it: PostgreSQL, Redis with a password, an API and workers."""

import contextlib
import signal

import psutil
import pytest
from support.deployment import Deployment, wait_until

from core.notify.messages import machine_type_queue

pytestmark = [pytest.mark.faults]

ONCE = 'echo started >>"$GRADIENT_STORAGE_DIR/starts-$GRADIENT_JOB_ID"'
GATE = 'while [ ! -e "$GRADIENT_STORAGE_DIR/go" ]; do sleep 0.05; done'


@pytest.fixture
def full_deployment(tmp_path, postgres, redis):
    deployment = Deployment(
        tmp_path / "home",
        GRADIENT_DATABASE__URL=postgres.new_database(),
        GRADIENT_QUEUE__BROKER_URL=redis.url,
        GRADIENT_WORKER__SLOTS="2",
        GRADIENT_WORKER__LEASE_SECONDS="3",
        GRADIENT_WORKER__HEARTBEAT_SECONDS="0.5",
        GRADIENT_WORKER__SWEEP_SECONDS="0.5",
    )
    deployment.migrate()
    deployment.start_api()
    yield deployment
    deployment.stop()


def all_end_once(deployment, jobs):
    for job_id in jobs:
        job = deployment.wait_ended(job_id)
        assert (job["state"], job["exitCode"], job["attempt"]) == ("Stopped", 0, 1), job
        assert (deployment.storage / f"starts-{job_id}").read_text() == "started\n", "it ran once"
        assert deployment.raw_log(job_id) == b"done\n"


def running(deployment):
    return deployment.request("GET", "/jobs?state=Running&limit=500").json()["jobs"]


def parents(deployment):
    """Pids of what started the jobs' processes; a shell's short-lived children may be gone while one looks."""
    found = set()
    for process in deployment.find_job_processes():
        with contextlib.suppress(psutil.NoSuchProcess):
            found.add(process.ppid())
    return found


def open_gate(deployment):
    (deployment.storage / "go").touch()


def test_twenty_jobs_run_once_on_two_workers(full_deployment):
    workers = [full_deployment.start_worker(name) for name in ("one", "two")]
    jobs = [full_deployment.submit(f"{ONCE}; {GATE}; echo done") for _ in range(20)]
    wait_until(lambda: len(running(full_deployment)) == 4, "both slots of both workers to be taken")
    assert {worker.pid for worker in workers} <= parents(full_deployment), "both take part"
    open_gate(full_deployment)
    all_end_once(full_deployment, jobs)
    wait_until(lambda: full_deployment.scratch() == [], "their folders to go")


def test_a_worker_that_is_asked_to_end_leaves_its_job_to_the_next(full_deployment):
    first = full_deployment.start_worker("one")
    job_id = full_deployment.submit(f"{ONCE}; {GATE}; echo done")
    wait_until(lambda: running(full_deployment), "the job to run")
    leader = full_deployment.find_job_processes(job_id)[0].pid
    first.signal(signal.SIGTERM)
    assert first.wait() == 0, first.read_log()
    assert psutil.pid_exists(leader)
    assert full_deployment.job(job_id)["state"] == "Running"
    full_deployment.start_worker("two")
    wait_until(lambda: [e for e in full_deployment.events(job_id) if e["kind"] == "adopted"], "the job to be adopted")
    open_gate(full_deployment)
    all_end_once(full_deployment, [job_id])
    assert full_deployment.find_job_processes(job_id) == []


def test_a_worker_on_another_machine_is_woken_through_the_broker(full_deployment, redis, tmp_path):
    """It shares the stores, not the local notification file: without a message it looks only once in two minutes."""
    far = tmp_path / "far"
    far.mkdir()
    for store in ("workspaces", "logs", "artifacts", "attempts", "storage"):
        (full_deployment.home / store).mkdir(exist_ok=True)
        (far / store).symlink_to(full_deployment.home / store)
    (far / "home-mark").symlink_to(full_deployment.home / "home-mark")
    worker = full_deployment.start(
        "worker", "--name", "far", GRADIENT_HOME=str(far), GRADIENT_WORKER__POLL_SECONDS="120"
    )
    wait_until(lambda: "ready." in worker.read_log(), "it to listen")
    for _ in range(3):
        job_id = full_deployment.submit(f"{ONCE}; {GATE}; echo done")
        open_gate(full_deployment)
        all_end_once(full_deployment, [job_id])
        # The connection is lost and comes back: the worker hears the next ring as well.
        redis.kill()
        redis.start()
    with redis.client() as client:
        wait_until(lambda: client.llen("gradient:" + machine_type_queue("CPU")) == 0, "the last message to be taken")
