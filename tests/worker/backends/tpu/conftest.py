"""A backend over a simulated cloud, with nothing left in it at the end."""

import pytest
from support.backend_place import Place
from support.fake_clouds import NOTHING, MemoryResourceLog, simulated, tpu_settings


@pytest.fixture
def simulator():
    with simulated() as running:
        yield running


@pytest.fixture
def have(simulator, tmp_path):
    """Makes places; at the end their resources are released as a worker's teardown does, and nothing may be left."""
    places = []

    def make(**options):
        settings = tpu_settings(simulator, **options)
        place = Place("tpu", tmp_path, tpu=settings, resource_log=MemoryResourceLog(), machine_type="TPU")
        places.append(place)
        return place

    yield make
    simulator.heal()
    for place in places:
        place.clear()
    assert simulator.cloud.left() == NOTHING
