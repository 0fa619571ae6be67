"""Fixtures: the simulator of Cloud Storage, and Google as production reaches it."""

from collections.abc import Iterator
from importlib import import_module

import pytest
from support.google.gcs_faults import FaultyGcs
from support.google.gcs_simulator import GcsHarness


@pytest.fixture(scope="session")
def gcs_simulator() -> Iterator[FaultyGcs]:
    """One simulator of Cloud Storage a test process."""
    simulator = FaultyGcs().start()
    yield simulator
    simulator.stop()


@pytest.fixture
def gcs(gcs_simulator: FaultyGcs) -> Iterator[GcsHarness]:
    """The simulator, without faults but those that this test asks for."""
    yield GcsHarness(gcs_simulator)
    gcs_simulator.faults.clear_faults()


@pytest.fixture
def storage() -> Iterator[FaultyGcs]:
    """A Cloud Storage of the test's own."""
    simulator = FaultyGcs().start()
    yield simulator
    simulator.stop()


@pytest.fixture(scope="session")
def google_servers(tmp_path_factory):
    """One imitation of Google a test process."""
    production = import_module("support.google.production")  # Google's clients take a second to load
    servers = production.Google(tmp_path_factory.mktemp("google"))
    yield servers
    servers.stop()


@pytest.fixture
def google(google_servers, monkeypatch):
    """Google, as programs with production settings reach it, without anything of an earlier test."""
    google_servers.reset()
    for name, value in google_servers.environment().items():
        monkeypatch.setenv(name, value)
    yield google_servers
    google_servers.end_vms()
