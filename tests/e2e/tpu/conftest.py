"""One service with simulated TPU VMs for the tests of a file."""

import pytest
from support.google.tpu_vm_deployment import served


@pytest.fixture(scope="module")
def service(simulator, storage, tmp_path_factory):
    with served(simulator, storage, tmp_path_factory.mktemp("service")) as deployment:
        yield deployment
