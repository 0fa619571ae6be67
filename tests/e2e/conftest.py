from collections.abc import Iterator
from typing import Any

import pytest
from support.deployment import Deployment
from support.google.tpu_vm_deployment import vms

from gradient_server.simulator.gcs.server import GcsSimulator


@pytest.fixture(scope="module")
def service_settings() -> dict[str, str]:
    """Settings of the module's service, of which a module may have its own."""
    return {}


@pytest.fixture(scope="module")
def service(service_settings: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """A service for the tests of a module."""
    deployment = Deployment(tmp_path_factory.mktemp("service") / "home", **service_settings)
    deployment.start_up(SECRET_OF_THE_SERVICE="not for jobs")
    yield deployment
    deployment.stop()


@pytest.fixture(scope="module")
def storage() -> Iterator[GcsSimulator]:
    """A simulated Cloud Storage for the tests of a module."""
    simulator = GcsSimulator().start()
    yield simulator
    simulator.stop()


@pytest.fixture(scope="module")
def simulator(storage: GcsSimulator) -> Iterator[Any]:
    """A simulated cloud whose TPU VMs use it."""
    with vms(storage) as running:
        yield running
