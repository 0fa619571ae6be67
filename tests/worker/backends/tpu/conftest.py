"""A backend over a simulated cloud, with nothing left in it at the end."""

import pytest
from support.backend_harness import BackendHarness
from support.google.cloud_fake import PROJECT, running_google
from support.google.tpu_fake import GENERATIONS
from support.google.tpu_simulator import (
    NO_RESOURCES,
    SHORT_TIMES,
    MemoryResourceInventory,
    running_simulator,
    tpu_settings,
)


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
        place = BackendHarness(
            "tpu", tmp_path, tpu=settings, resource_inventory=MemoryResourceInventory(), machine_type="TPU"
        )
        places.append(place)
        return place

    yield make
    simulator.clear_all_faults()
    for place in places:
        place.clear()
    assert simulator.cloud.remaining_resources() == NO_RESOURCES


@pytest.fixture(scope="session")
def google_servers():
    with running_google() as running:
        yield running


@pytest.fixture
def google(google_servers, monkeypatch):
    """Google, as programs with production settings reach it."""
    google_servers.reset()
    for name, value in google_servers.environment().items():
        monkeypatch.setenv(name, value)
    yield google_servers
    google_servers.vms.stop()


@pytest.fixture
def make_google_harness(google, tmp_path):
    """Makes backends with production settings: real clients, TLS, a key file, and no simulator."""
    places = []

    def make(machine_type="TPU", docker=None, bucket=None, **options):
        settings = {"project": PROJECT, "zones": list(GENERATIONS), "placement": "grpc"} | SHORT_TIMES | options
        place = BackendHarness(
            "tpu",
            tmp_path,
            docker,
            tpu=settings,
            bucket={"token_port": 0} | (bucket or {}),
            resource_inventory=MemoryResourceInventory(),
            machine_type=machine_type,
        )
        assert (place.settings.tpu.simulator_address, place.settings.gcs.endpoint) == (None, None)
        places.append(place)
        return place

    yield make
    google.tpu.faults.clear()
    google.storage.refuse.clear()
    for place in places:
        place.clear()
        place.backend.remove_orphans(lambda *_: False, lambda _: True)  # objects of starts that were refused
    assert (google.tpu.nodes, google.tpu.queued, google.storage.names("jobs/j")) == ({}, {}, [])
