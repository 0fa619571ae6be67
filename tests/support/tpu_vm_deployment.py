"""A deployment whose TPU jobs run on simulated TPU VMs."""

import contextlib
import json

from support.deployment import Deployment, wait_until
from support.tpu_simulator import NO_RESOURCES, running_simulator, tpu_settings

from gradient_server.simulator.tpu.vms import SimulatedVms


@contextlib.contextmanager
def vms(storage, **environment):
    machines = SimulatedVms(storage.environment() | environment)
    with running_simulator(machines=machines) as running:
        yield running
    machines.stop()


@contextlib.contextmanager
def served(simulator, storage, tmp_path, **settings):
    patient = {"timeout_seconds": 30.0, "probe_seconds": 60.0, "unhealthy_seconds": 20.0}
    made = tpu_settings(simulator, placement="vm", vm_poll_seconds=0.1, **patient)
    tpu = {
        f"GRADIENT_TPU__{name}".upper(): value if isinstance(value, str) else json.dumps(value)
        for name, value in made.items()
    }
    gcs = {"GRADIENT_GCS__ENDPOINT": storage.url, "GRADIENT_GCS__CA": str(storage.ca)}
    deployment = Deployment(tmp_path / "home", **{"GRADIENT_WORKER__SWEEP_SECONDS": "0.5", **tpu, **gcs, **settings})
    try:
        deployment.start_up()
        yield deployment
    finally:
        deployment.stop()


def nothing_left(simulator, storage):
    wait_until(lambda: simulator.cloud.remaining_resources() == NO_RESOURCES, "nodes and queued resources to be gone")
    wait_until(lambda: storage.objects() == [], "the bucket to be empty")
    return True
