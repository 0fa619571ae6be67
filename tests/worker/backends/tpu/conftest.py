"""A backend over a simulated cloud, with nothing left in it at the end."""

import pytest
from support.backend_harness import BackendHarness
from support.fake_clouds import NO_RESOURCES, MemoryResourceLog, running_simulator, tpu_settings


@pytest.fixture
def simulator():
    with running_simulator() as running:
        yield running


@pytest.fixture
def make_harness(simulator, tmp_path):
    """Makes places; at the end their resources are released as a worker's teardown does, and nothing may be left."""
    places = []

    def make(**options):
        settings = tpu_settings(simulator, **options)
        place = BackendHarness("tpu", tmp_path, tpu=settings, resource_log=MemoryResourceLog(), machine_type="TPU")
        places.append(place)
        return place

    yield make
    simulator.clear_all_faults()
    for place in places:
        place.clear()
    assert simulator.cloud.remaining_resources() == NO_RESOURCES
