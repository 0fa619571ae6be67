"""Kill the worker of a TPU job at every named point: the command runs once, and nothing is left in the cloud."""

import signal

import pytest
from support.deployment import Deployment, wait_until
from support.faults.fault_report import FULL_RUN
from support.google.tpu_vm_deployment import cloud_settings, nothing_left, vms

from core.system.failpoints import ATTEMPT_FAILPOINTS

BY_THE_RUNNER = {"created", "confirmed", "launched"}
"""Points of a backend that starts jobs on the worker's host."""
BESIDE = [("grpc", name) for name in ATTEMPT_FAILPOINTS]
ON_VM = [("vm", name) for _, name in BESIDE if name not in BY_THE_RUNNER]
SOME = [("grpc", "launched"), ("vm", "running"), pytest.param("vm", "destroyed", marks=pytest.mark.slow)]
LINES = 100

pytestmark = [pytest.mark.faults, pytest.mark.timeout(300)]


@pytest.fixture
def simulator(storage):
    with vms(storage) as running:
        yield running


@pytest.fixture
def deployment(simulator, storage, tmp_path, placement):
    settings = cloud_settings(simulator, storage, placement)
    timers = {"GRADIENT_WORKER__LEASE_SECONDS": "2"}
    made = Deployment(tmp_path / "home", **settings, **timers)
    yield made
    made.stop()


@pytest.mark.parametrize(("placement", "name"), BESIDE + ON_VM if FULL_RUN else SOME)
def test_a_worker_of_a_tpu_job_killed_here_leaves_nothing_in_the_cloud(
    deployment, simulator, storage, tmp_path, placement, name
):
    starts = tmp_path / "starts"
    command = f"""
echo "{placement}" >>{starts}
for n in $(seq 1 {LINES}); do echo "line $n"; done
printf 'the model' >"$GRADIENT_ARTIFACTS_DIR/model"
exit 7
"""
    deployment.start_api()
    doomed = deployment.start_worker(GRADIENT_FAILPOINT=name)
    job_id = deployment.submit(command, machineType="TPU")
    assert doomed.wait() == -signal.SIGKILL, doomed.read_log()
    heir = deployment.start_worker()
    job = deployment.wait_ended(job_id)
    assert (job["state"], job["exitCode"], job["attempt"]) == ("Failed", 7, 1), job
    assert starts.read_text() == f"{placement}\n"
    assert deployment.raw_log(job_id) == b"".join(b"line %d\n" % number for number in range(1, LINES + 1))
    assert deployment.artifact(job_id, "model") == b"the model"
    assert nothing_left(simulator, storage)
    created = [what for kind, what in simulator.cloud.record if kind == "created"]
    assert created == [f"queuedResources/gj-{job_id}-1", f"nodes/gj-{job_id}-1"]
    wait_until(lambda: deployment.scratch() == [], "the scratch directory to go")
    wait_until(lambda: deployment.request("GET", "/tpus").json()["tpus"] == [], "the inventory to be empty")
    heir.signal(signal.SIGTERM)
    heir.wait()
