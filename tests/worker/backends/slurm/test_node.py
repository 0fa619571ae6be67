"""The part of a compute node in a job: it measures the job."""

import json
import subprocess
import threading

import pytest
from support.deployment import wait_until
from support.nvidia_driver import MIB, FakeDriver

from worker.backends.slurm import node
from worker.runner.control_files import write_control_file

pytestmark = pytest.mark.integration


def test_the_gpus_of_a_job_are_measured_in_its_own_order(tmp_path, monkeypatch):
    driver = FakeDriver(monkeypatch, 3)
    driver.memory, driver.percent = [1 * MIB, 2 * MIB, 3 * MIB], [10, 20, 30]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,1")
    monkeypatch.setattr(node, "_MEASURE_SECONDS", 0.1)
    env = {"GRADIENT_JOB_ID": "jmeasured", "GRADIENT_ATTEMPT": "1"}
    with subprocess.Popen(["/bin/sleep", "600"], env=env) as job:
        write_control_file(tmp_path, "started", str(job.pid))
        meter = threading.Thread(target=node.main, args=("measure", str(tmp_path), "jmeasured", "1", "0"))
        meter.start()
        usage = json.loads(wait_until((tmp_path / node.USAGE_FILE).exists, "it") and (tmp_path / "usage").read_text())
        job.kill()
    meter.join()
    gpus = [(usage[f"gpu{number}_percent"], usage[f"gpu{number}_memory_bytes"]) for number in range(2)]
    assert gpus == [(30, 3 * MIB), (20, 2 * MIB)]
    assert usage["processes"] == 1
