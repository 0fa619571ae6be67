"""The simulated cloud as a whole, without TensorFlow."""

import importlib.util
import json
import socket
import sys

import pytest

from core.errors import ExtraMissing
from core.settings import Settings
from gradient_server import simulator
from gradient_server.simulator.cloud import SimulatedCloud

pytestmark = pytest.mark.integration


@pytest.fixture
def world(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    world = SimulatedCloud(room=3).start()
    yield world
    world.stop()


def test_its_settings_lead_a_worker_there(world, monkeypatch, tmp_path):
    for name, value in world.environment().items():
        monkeypatch.setenv(name, value)
    told = Settings()
    given = world.settings(Settings(home=tmp_path))
    assert told.tpu.simulator_address == given.tpu.simulator_address == world.tpus.address
    assert told.tpu.zones == given.tpu.zones == json.loads(world.environment()["GRADIENT_TPU__ZONES"])
    assert told.gcs.endpoint == given.gcs.endpoint == world.storage.url
    assert given.root == tmp_path


def test_without_tensorflow_its_device_takes_connections(world):
    assert not world.has_tensorflow
    with socket.create_connection(world.tpus.cloud.device, timeout=10) as connection:
        assert connection.recv(1) == b""


def test_without_googles_libraries_the_simulator_says_what_to_install(monkeypatch):
    for name in [name for name in sys.modules if name.startswith("gradient_server.simulator.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "grpc", None)
    with pytest.raises(ExtraMissing, match=r"gradient-jobs\[simulator\]"):
        simulator.load_simulated_cloud()
