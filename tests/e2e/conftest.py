"""Fixtures of the end-to-end tests."""

from collections.abc import Iterator

import pytest

from gradient_server.simulator.gcs.server import GcsSimulator


@pytest.fixture
def storage() -> Iterator[GcsSimulator]:
    """A Cloud Storage of the test's own."""
    simulator = GcsSimulator().start()
    yield simulator
    simulator.stop()
