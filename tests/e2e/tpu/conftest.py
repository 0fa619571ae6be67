"""One simulated cloud with TPU VMs, one bucket and one service for the tests of a file."""

import pytest
from support.google.tpu_vm_deployment import served, vms

from gradient_server.simulator.gcs.server import GcsSimulator


@pytest.fixture(scope="module")
def storage():
    simulator = GcsSimulator().start()
    yield simulator
    simulator.stop()


@pytest.fixture(scope="module")
def simulator(storage):
    with vms(storage) as running:
        yield running


@pytest.fixture(scope="module")
def service(simulator, storage, tmp_path_factory):
    with served(simulator, storage, tmp_path_factory.mktemp("service")) as deployment:
        yield deployment
