"""Containers as senders: found while they start, and for a moment after their end."""

import time
from types import SimpleNamespace

import pytest
from docker.api.client import APIClient
from support.backend_harness import BackendHarness

from core.settings import Settings
from worker.backends.docker.engine.client import EngineUnavailable
from worker.statsd import container_sender_lookup
from worker.statsd.container_sender_lookup import ContainerSenderLookup
from worker.statsd.metrics_writer import Sender

ADDRESS = ("172.18.0.2", 40000)


def test_a_container_that_the_engine_does_not_list_yet_is_known_by_its_address(docker_server, tmp_path, monkeypatch):
    """On a busy machine the first process sends seconds before the engine lists the container as running."""
    place = BackendHarness("docker", tmp_path, docker_server.settings())
    try:
        place.launch(place.spec("sleep 600"))
        with docker_server.client() as client:
            [one] = client.containers(filters={"name": place.job_id})
        [network] = one["NetworkSettings"]["Networks"].values()
        monkeypatch.setattr(APIClient, "containers", lambda *_, **__: [])
        address = (network["IPAddress"], 40000)
        assert ContainerSenderLookup(place.settings).find_senders([address]) == {address: Sender(place.job_id, 1)}
    finally:
        monkeypatch.undo()
        place.clear()


@pytest.fixture
def network(monkeypatch):
    """Names of containers by address; None: the engine is away."""
    attached = {}

    def inspect(_):
        if attached.get("away"):
            raise EngineUnavailable("no answer")
        return {"Containers": {name: {"Name": name, "IPv4Address": f"{ip}/16"} for ip, name in attached.items()}}

    monkeypatch.setattr(ContainerSenderLookup, "inspect", inspect)
    return attached


@pytest.fixture
def asked(tmp_path):
    known = ContainerSenderLookup(Settings(home=tmp_path))

    def ask():
        known.trusted_until = 0.0
        return known.find_senders([ADDRESS]).get(ADDRESS)

    return ask


def test_what_a_container_sent_last_is_still_its_own_until_another_has_the_address(network, asked, monkeypatch):
    network |= {ADDRESS[0]: "gradient-jone-2"}
    assert asked() == Sender("jone", 2)
    network.clear()
    assert asked() == Sender("jone", 2)
    network |= {ADDRESS[0]: "gradient-jtwo-1"}
    assert asked() == Sender("jtwo", 1)
    network.clear()
    later = time.monotonic() + 60
    monkeypatch.setattr(container_sender_lookup, "time", SimpleNamespace(monotonic=lambda: later))
    assert asked() is None
