"""Cards of a host: found by the driver's library, offered with what is ready."""

import pynvml
import pytest

from core.db import Database
from core.settings import MachineSettings, Settings, WorkerSettings
from worker.backends.docker import nvidia
from worker.backends.docker.backend import DockerBackend
from worker.host import Host


@pytest.fixture
def driver(monkeypatch):
    """A driver with two cards, as far as it is asked."""
    monkeypatch.setattr(pynvml, "nvmlInit", lambda: None)
    monkeypatch.setattr(pynvml, "nvmlShutdown", lambda: None)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetCount", lambda: 2)


@pytest.fixture
def offer(tmp_path, monkeypatch):
    monkeypatch.setattr(DockerBackend, "unready", lambda _: None)

    def make(**worker):
        settings = Settings(home=tmp_path, machines=MachineSettings(simulate=False), worker=WorkerSettings(**worker))
        return Host.open(settings, Database(f"sqlite:///{tmp_path}/x.db"), name="w", host="h").offer()

    return make


@pytest.mark.usefixtures("driver")
def test_cards_are_found_by_index():
    assert nvidia.cards() == ("0", "1")


def test_a_host_without_a_driver_has_no_cards(offer, monkeypatch):
    def fail():
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    monkeypatch.setattr(pynvml, "nvmlInit", fail)
    assert nvidia.cards() == ()
    assert offer().cards == (), "which is not the same as uncounted: GPU types are passed over"


@pytest.mark.usefixtures("driver")
def test_a_driver_that_fails_later_has_no_cards_and_is_shut_down(monkeypatch):
    shut = []

    def fail():
        raise pynvml.NVMLError(pynvml.NVML_ERROR_UNKNOWN)

    monkeypatch.setattr(pynvml, "nvmlDeviceGetCount", fail)
    monkeypatch.setattr(pynvml, "nvmlShutdown", lambda: shut.append(1))
    assert (nvidia.cards(), shut) == ((), [1])


@pytest.mark.usefixtures("driver")
def test_what_the_settings_say_goes_before_what_is_found(offer):
    assert offer().cards == ("0", "1")
    assert offer(cards=["1"]).cards == ("1",)


@pytest.mark.usefixtures("driver")
def test_a_backend_that_is_not_ready_is_not_offered(offer, monkeypatch, caplog):
    monkeypatch.setattr(DockerBackend, "unready", lambda _: "The engine does not answer.")
    found = offer()
    assert (found.backends, found.cards) == ((), None)
    assert [record.message for record in caplog.records] == ["backend_not_ready"]
