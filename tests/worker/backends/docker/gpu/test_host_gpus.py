"""GPUs of a host: what the driver reports of them, whether they are free, how containers get them."""

import os
import threading

import pynvml
import pytest
from support.nvidia_driver import MIB, FakeDriver

from core.db.database import Database
from core.settings import Settings
from core.settings.worker import MachineSettings, WorkerSettings
from worker.backends.base import LaunchError
from worker.backends.docker.backend import DockerBackend
from worker.backends.docker.gpu import device_requests, host_gpus
from worker.backends.docker.gpu.host_gpus import GpuMonitor
from worker.context import WorkerContext

FACTS = {
    "index": "1",
    "uuid": "GPU-111",
    "name": "NVIDIA Test GPU",
    "memory": 16_384 * MIB,
    "serial": None,
    "driver": "550.54.15",
    "cuda": "12.4",
}


@pytest.fixture
def driver(monkeypatch):
    return FakeDriver(monkeypatch, 2)


@pytest.fixture
def gpus(monkeypatch):
    monkeypatch.setattr(host_gpus, "PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(host_gpus, "PAUSE_FACTOR", 0)
    return GpuMonitor()


@pytest.fixture
def offer(tmp_path, monkeypatch):
    monkeypatch.setattr(DockerBackend, "unavailable_reason", lambda _: None)

    def make(**worker):
        settings = Settings(home=tmp_path, machines=MachineSettings(simulate=False), worker=WorkerSettings(**worker))
        return WorkerContext.open(
            settings, Database(f"sqlite:///{tmp_path}/x.db"), worker_name="w", hostname="h"
        ).build_offer()

    return make


# ---- What the driver tells


def test_the_library_tells_what_a_gpu_is_and_does(driver, gpus):
    driver.memory[1], driver.percent[1] = 300 * MIB, 55
    assert gpus.indices() == ("0", "1")
    assert gpus.facts(["1"]) == [FACTS]
    assert gpus.sample(["1", "GPU-000"]) == {
        "gpu0_percent": 55,
        "gpu0_memory_bytes": 300 * MIB,
        "gpu0_watts": 65.2,
        "gpu0_celsius": 41,
        "gpu1_percent": 0,
        "gpu1_memory_bytes": 0,
        "gpu1_watts": 65.2,
        "gpu1_celsius": 41,
    }
    assert driver.open == 0, "the library is let go of each time: a driver that is held cannot be upgraded"


def test_a_gpu_that_fell_off_the_bus_is_left_out(driver, gpus):
    driver.lost = {0}
    assert gpus.indices() == ("1",)
    assert gpus.taken(["0", "1"]) == {"0": "the driver does not list it"}


@pytest.mark.usefixtures("driver")
def test_a_backend_that_is_not_ready_is_not_offered(offer, monkeypatch, caplog):
    monkeypatch.setattr(DockerBackend, "unavailable_reason", lambda _: "The engine does not answer.")
    found = offer()
    assert (found.backends, found.gpus) == ((), None)
    assert [record.message for record in caplog.records] == ["backend_not_ready"]


# ---- Whether a GPU is free


def test_a_gpu_that_something_uses_is_told_with_its_process(driver, gpus):
    driver.memory[0], driver.pids[0] = 3277 * MIB, [os.getpid()]
    taken = gpus.taken(["0", "1"])
    assert taken.keys() == {"0"}
    assert taken["0"].startswith(f"3,277 MiB in use, by process {os.getpid()} (")
    driver.pids[0] = [2**22 + 1, 2**22 + 2, 2**22 + 3, 2**22 + 4]
    assert gpus.taken(["0"])["0"].endswith("by processes 4194305, 4194306, 4194307 and 1 more")


@pytest.mark.parametrize(
    ("memory", "percent", "free"), [(512, 20, True), (513, 0, False), (0, 21, False), (0, 0, True)]
)
def test_up_to_both_thresholds_a_gpu_is_free(driver, gpus, memory, percent, free):
    driver.memory[1], driver.percent[1] = memory * MIB, percent
    assert ("1" not in gpus.taken(["1"])) is free


def test_a_driver_that_hangs_keeps_nobody_long_and_no_gpu_is_free(driver, gpus, monkeypatch):
    monkeypatch.setattr(host_gpus, "DRIVER_TIMEOUT_SECONDS", 0.05)
    go_on = threading.Event()
    monkeypatch.setattr(pynvml, "nvmlDeviceGetCount", lambda: go_on.wait(60) and 2)
    assert gpus.indices() == ()
    assert gpus.sample(["0"]) == {}
    assert "has not answered" in gpus.taken(["0"])["0"]
    assert driver.init_count == 1, "one question at a time"
    go_on.set()


# ---- Whether a GPU is broken


def test_a_gpu_whose_memory_is_broken_is_told_with_its_errors(driver, gpus):
    driver.ecc, driver.remapped = {0: 3}, {0: (5, 2, 0, 0), 1: (0, 1, 1, 1)}
    assert gpus.faults(["0", "1"]) == {
        "0": "3 ECC errors since its last reset could not be corrected",
        "1": "rows of its memory could not be replaced; parts of its memory are replaced when it is reset",
    }
    assert gpus.faults(["GPU-000"]).keys() == {"GPU-000"}
    driver.ecc, driver.remapped = {}, {0: (9, 9, 0, 0)}
    assert gpus.faults(["0", "1"]) == {}, "what was repaired breaks no job"


@pytest.mark.parametrize(("error", "says"), [("GPU_IS_LOST", "fell off the bus"), ("RESET_REQUIRED", "to be reset")])
def test_a_gpu_that_no_longer_answers_is_broken(driver, gpus, error, says):
    driver.lost, driver.lost_error = {1}, getattr(pynvml, f"NVML_ERROR_{error}")
    assert says in gpus.faults(["0", "1"])["1"]
    assert gpus.indices() == ("0",)


def test_a_gpu_is_not_broken_because_its_driver_is_away(driver, gpus):
    driver.error = pynvml.NVML_ERROR_DRIVER_NOT_LOADED
    assert gpus.faults(["0", "1"]) == {}


@pytest.mark.parametrize("xid", [48, 63, 64, 74, 79, 92, 94, 95, 119, 120])
def test_an_xid_error_of_the_hardware_is_told(driver, gpus, xid):
    gpus.watch(["0", "1"])
    driver.report_xids(1, 13, 31, xid, 45)
    found = gpus.faults(["0", "1"])
    assert found.keys() == {"1"}
    assert found["1"].startswith(f"Xid {xid} by 20")
    assert gpus.faults(["0", "1"]) == {}, "it is told once"
    assert driver.open == 0


@pytest.mark.parametrize("xid", [13, 31, 43, 45])
def test_an_xid_error_of_a_program_is_none_of_the_hardware(driver, gpus, xid):
    gpus.watch(["0"])
    driver.report_xids(0, *[xid] * 5)
    assert gpus.faults(["0"]) == {}


def test_watches_that_cannot_be_made_or_are_made_again_hold_nothing(driver, gpus):
    gpus.watch(["0"])
    gpus.watch(["0"])
    driver.lost = {0}
    gpus.watch(["0"])
    assert (driver.open, gpus.faults(["0"])) == (0, {"0": "it fell off the bus"})


def test_a_hot_gpu_gets_no_job_until_it_is_cool_again(driver, gpus):
    driver.throttle[0] = pynvml.nvmlClocksThrottleReasonHwThermalSlowdown | pynvml.nvmlClocksThrottleReasonHwSlowdown
    assert gpus.taken(["0", "1"]) == {"0": "its hardware slows it down: it is too hot"}
    assert gpus.faults(["0"]) == {}
    driver.throttle[0] = pynvml.nvmlClocksThrottleReasonSwPowerCap
    assert gpus.taken(["0"]) == {}, "a limit of its power is normal"


# ---- Handing over


def test_gpus_go_by_their_cdi_names_where_the_engine_has_them(tmp_path):
    (tmp_path / "nvidia.yaml").write_text(
        "---\ncdiVersion: 0.5.0\ncontainerEdits:\n  env:\n  - NVIDIA_VISIBLE_DEVICES=void\n"
        'devices:\n- containerEdits:\n    deviceNodes:\n    - path: /dev/nvidia0\n  name: "0"\n'
        "- containerEdits: {}\n  name: GPU-111\nkind: nvidia.com/gpu\n"
    )
    (tmp_path / "other.json").write_text('{"kind": "example.com/nic", "devices": [{"name": "1"}]}')
    specified = {"CDISpecDirs": [str(tmp_path), "/nowhere"]}
    discovered = {"DiscoveredDevices": [{"Source": "cdi", "ID": "nvidia.com/gpu=0"}], "CDISpecDirs": [str(tmp_path)]}
    assert device_requests.cdi_names(["0", "GPU-111"], specified) == ("nvidia.com/gpu=0", "nvidia.com/gpu=GPU-111")
    assert device_requests.cdi_names(["1"], specified) == ()
    assert device_requests.cdi_names(["0"], discovered) == ("nvidia.com/gpu=0",)
    assert device_requests.cdi_names(["GPU-111"], discovered) == (), "what the engine itself says goes first"
    assert device_requests.cdi_names(["0"], {}) == ()


def test_an_engine_that_can_hand_over_nothing_is_refused(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(LaunchError, match="no_gpu_runtime: its runtimes are runc"):
        device_requests.check_supported(["0"], {"Runtimes": {"runc": {}}})
    assert device_requests.is_supported(["0"], {"Runtimes": {"nvidia": {}}})
    assert device_requests.is_supported(["0"], {"DiscoveredDevices": [{"Source": "cdi", "ID": "nvidia.com/gpu=0"}]})
