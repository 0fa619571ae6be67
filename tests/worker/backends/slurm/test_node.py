"""The part of a compute node in a job: what it starts, and that it measures the job."""

import json
import subprocess
import threading
from collections import Counter

import pytest
from support.backend_harness import BackendHarness
from support.deployment import wait_until
from support.nvidia_driver import MIB, FakeDriver
from support.slurm_cluster import CLUSTER_TYPE

from core.ids import new_id
from core.settings.slurm import SlurmSettings
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


@pytest.fixture
def place(slurm, tmp_path):  # noqa: ARG001 - where its jobs run
    place = BackendHarness("slurm", tmp_path, slurm=SlurmSettings(enabled=True, poll_seconds=1))
    yield place
    place.clear()


def test_a_job_may_have_variables_of_any_name(place):
    env = dict.fromkeys(("run", "control", "signal", "root", "main", "each", "job", "srun"), "mine")
    spec = place.spec("echo $GRADIENT_ATTEMPT", env=env)
    assert place.wait(place.launch(spec)).code == 0
    assert place.output(spec) == b"1\n"


def test_nothing_runs_beside_a_short_job_but_three_shells(place, slurm):
    """Each further program costs a member of an array more than all that these do."""
    spec, handle = place.running("echo up; exec tail -f /dev/null")
    names = Counter(process.name() for process in slurm.processes())
    assert names == {"slurmstepd": 1, "slurm_script": 2, "bash": 1, "tail": 1}
    wait_until((spec.control / "heartbeat").exists, "a heartbeat")
    assert "sleep" not in {process.name() for process in slurm.processes()}
    place.backend.destroy(handle)


def test_submits_by_the_list_of_machine_types_as_it_is_then(place, slurm):
    listed = place.settings.root / "machines.toml"
    for cpus in (1, 2):
        listed.write_text(CLUSTER_TYPE.replace("cpus = 1", f"cpus = {cpus}"))
        place.machine_type = "cluster"
        place.job_id = new_id("j")
        spec, handle = place.running("echo up; exec tail -f /dev/null")
        assert slurm.run("squeue", "-h", f"--name={spec.name}", "-o", "%C") == str(cpus)
        place.backend.destroy(handle)
