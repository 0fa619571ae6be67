"""`gradient-server workers`, `drain` and `resume`, on a real service."""

import json

import pytest
from support.deployment import wait_until

pytestmark = pytest.mark.integration


@pytest.fixture
def server(deployment):
    """Runs `gradient-server` against the deployment."""

    def run(*arguments):
        process = deployment.start(*arguments)
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
