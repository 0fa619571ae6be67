"""The measurement of a host: alone, without a GPU, and beside programs that use the machine, too."""

import json
import os
import subprocess
import sys
import time

import pytest

from core.catalogue import host_measurement
from core.catalogue.machine_types import Catalogue, host_entry
from core.comparison.peaks import peaks_of
from core.settings import Settings
from core.settings.worker import MachineSettings
from gradient_server.commands.machines import format_table

BUSY = "import time\nwhile True: pass"
H100 = {
    "cpu": "Xeon", "cpus": 16, "cores": 8, "memory_gb": 137.0, "reckoned_tflops": {"fp32": 2.0}, "device": "gpu",
    "gpus": [{"name": "NVIDIA H100 80GB HBM3", "memory_gb": 85.5}] * 2,
    "tflops": {"fp32": 51.0, "tf32": 380.0, "bf16": 700.0, "fp16": 690.0},
    "memory_bandwidth_gb_per_s": 2900.0,
}  # fmt: skip


def measured():
    command = [sys.executable, host_measurement.__file__, "--json"]
    began = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, check=True, env={"PATH": os.environ["PATH"]})
    return json.loads(done.stdout), time.monotonic() - began


@pytest.mark.slow
def test_a_busy_machine_measures_what_a_quiet_one_does():
    quiet, seconds = measured()
    assert seconds < 20
    busy = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(2 * quiet["cpus"])]
    try:
        loud, _ = measured()
    finally:
        for each in busy:
            each.kill()
            each.wait()
    assert quiet["tflops"].keys() == {"fp32", "fp64"}
    for name in quiet["tflops"]:
        assert loud["tflops"][name] == pytest.approx(quiet["tflops"][name], rel=0.35)
    assert loud["memory_bandwidth_gb_per_s"] > 0
    assert (quiet["device"], quiet["gpus"]) == ("cpu", [])


def settings(tmp_path, **machines):
    return Settings(home=tmp_path, machines=MachineSettings(**machines))


def test_from_the_first_start_the_host_is_a_real_machine_type_and_the_default(tmp_path):
    given = settings(tmp_path)
    host = next(iter(Catalogue.offered(given)))
    assert (host.name, host.backend, host.kind, host.price_per_hour) == ("host", "process", "cpu", 0.0)
    assert host.cpus == len(os.sched_getaffinity(0))
    assert given.backend_of(host.backend) == host.backend, "it is not simulated"
    assert given.default_machine == "host"
    assert settings(tmp_path, host="").default_machine == "CPU"
    assert "host" not in {each.name for each in Catalogue.offered(settings(tmp_path, host=""))}
    assert [each.name for each in Catalogue.offered(settings(tmp_path, offer_simulated=False))] == ["host"]


def test_gpus_get_their_data_sheet_and_measured_peaks_beat_it(tmp_path):
    given = settings(tmp_path, simulate=False, host_price=9.5)
    sheet = host_entry(given, H100 | {"tflops": {}, "memory_bandwidth_gb_per_s": None})
    assert (sheet["kind"], sheet["count"], sheet["tflops"]["bf16"], sheet["price_per_hour"]) == ("gpu", 2, 1979.0, 9.5)
    known = type(Catalogue.load().get("H100")).model_validate
    unmeasured, measured = known(sheet | {"name": "a"}), known(host_entry(given, H100) | {"name": "b"})
    assert measured.tflops == unmeasured.tflops, "the data sheet stays beside it"
    before, after = peaks_of(unmeasured, 16), peaks_of(measured, 16)
    assert (before.flops, after.flops) == (1979e12, 1400e12)
    assert (before.bandwidth, after.bandwidth) == (2 * 3350e9, 2 * 2900e9)
    assert host_entry(settings(tmp_path), H100)["kind"] == "cpu", "processes have no GPUs"


def test_a_table_of_the_host_changes_single_values(tmp_path):
    (tmp_path / "machines.toml").write_text('[host]\nprice_per_hour = 3.0\nprice_source = "ours, 2026-11"\n')
    host = Catalogue.offered(settings(tmp_path)).get("host")
    assert (host.price_per_hour, host.kind, host.cpus) == (3.0, "cpu", len(os.sched_getaffinity(0)))


def test_what_was_measured_on_a_gpu_does_not_describe_the_cpus(tmp_path):
    of_gpu = host_entry(settings(tmp_path, simulate=False, host_price=9.5), H100)
    of_cpu = host_entry(settings(tmp_path), H100)
    assert of_cpu["measured_tflops"] == {}
    assert not {"measured_bandwidth_gb_per_s", "launch_microseconds"} & of_cpu.keys()
    (tmp_path / "machines.toml").write_text(format_table("host", of_gpu) + '\n[host.docker.mounts]\n"/a" = "/b"\n')
    host = Catalogue.offered(settings(tmp_path)).get("host")
    assert (host.backend, host.kind, host.price_per_hour, host.docker.mounts) == ("process", "cpu", 9.5, {"/a": "/b"})
    assert (host.measured_tflops, host.count) == ({}, 1)
