"""`gradient-server workers`, `drain` and `resume`, on a real service."""

import json

import pytest
from support.deployment import wait_until

pytestmark = pytest.mark.integration


@pytest.fixture
def server(deployment):
    """Runs `gradient-server` against the deployment."""

    def run(*arguments, **settings):
        process = deployment.start(*arguments, **settings)
        return process.wait(), process.read_log()

    return run


HELD_UP = 'until [ -e "$GRADIENT_STORAGE_DIR/go" ]; do sleep 0.02; done'


def test_a_drained_worker_ends_its_job_and_takes_no_other(deployment, server):
    deployment.start_api()
    deployment.start_worker("w1", GRADIENT_WORKER__POLL_SECONDS="0.1")
    running = deployment.submit(HELD_UP)
    wait_until(lambda: deployment.job(running)["state"] == "Running", "the job to run")
    code, said = server("drain", "--name", "w1", "--wait", "--timeout", "0.5")
    assert (code, f"1 job still runs: {running}" in said, "stays drained" in said) == (1, True, True)
    waiting = deployment.submit("true")
    (deployment.storage / "go").touch()
    code, said = server("drain", "--name", "w1", "--wait")
    assert (code, "is empty" in said) == (0, True)
    assert deployment.wait_ended(running)["state"] == "Stopped"
    assert deployment.job(waiting)["state"] == "Pending"
    code, said = server("workers", "--json")
    (row,) = json.loads(said)
    assert (row["name"], row["state"], row["jobs"]) == ("w1", "drained", 0)
    assert server("resume", "--name", "w1")[0] == 0
    assert deployment.wait_ended(waiting)["state"] == "Stopped"
    _, said = server("workers")
    assert [line.split()[:2] for line in said.splitlines()] == [["NAME", "STATE"], ["w1", "ready"]]


WRONG = {
    "GRADIENT_WORKER__SLOTS: Input should be a valid integer": {"GRADIENT_WORKER__SLOTS": "many"},
    "Links to jobs' ports would point to 127.0.0.1": {"GRADIENT_WORKER__ADDRESS": "127.0.0.1"},
    "URL of the Celery broker: redis://": {"GRADIENT_QUEUE__BROKER_URL": "nonsense://x:secret@y"},
    "It ended with KeyError; see its log for details.": {
        "GRADIENT_QUEUE__BROKER_URL": "redis://x:secret@127.0.0.1:1/0?ssl_cert_reqs=nonsense"
    },
    "Is a directory": {},  # where its lock should be
}


def test_a_worker_that_ends_at_its_start_says_why_in_the_lists(deployment, server):
    lock = deployment.home / "workers" / "w1.lock"
    deployment.start_api()
    job = deployment.submit("true")

    def shown():
        [worker] = deployment.request("GET", "/workers").json()["workers"]
        return worker["state"], worker["refusal"]

    for why, settings in WRONG.items():
        if not settings:
            lock.unlink()
            lock.mkdir()
        assert server("worker", "--name", "w1", **settings)[0]
        state, refusal = shown()
        assert (state, why in refusal) == ("refusing", True), refusal
        assert f"Worker w1 does not take such jobs ({refusal.rstrip('.')})." in deployment.job(job)["message"]
    assert f"nothing; {refusal}" in server("workers")[1]
    lock.rmdir()
    right = {"GRADIENT_WORKER__LEASE_SECONDS": "1.2", "GRADIENT_WORKER__POLL_SECONDS": "0.1"}
    deployment.start_worker("w1", **right)
    assert deployment.wait_ended(job)["state"] == "Stopped"
    assert shown() == ("ready", None)
    code, said = server("worker", "--name", "w1")
    assert (code, "is running on this machine already" in said, shown()) == (1, True, ("ready", None))
    assert server("worker", "--name", "w1", GRADIENT_WORKER__SLOTS="many")[0]
    wait_until(lambda: shown() == ("ready", None), "the worker of that name that runs to be listed as such")
