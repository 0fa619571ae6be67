"""Jobs on fake GPUs: everything is real but the driver's library and the toolkit's hook."""

import os
import subprocess

import pytest
from support.deployment import wait_until
from support.nvidia_driver import MIB, FakeDriverEnvironment, install_toolkit, list_hooked_containers
from support.servers.private_docker_engine import SHELL_IMAGE, running_engine

GPU = "P4000"
HOLD = """
echo "GPUs $GRADIENT_GPUS $NVIDIA_VISIBLE_DEVICES"
while [ ! -e "$GRADIENT_STORAGE_DIR/go-$PS_JOB_ID" ]; do sleep 0.1; done
"""
WRITES = f"dd if=/dev/zero of=big bs=1M count=8 conv=fsync 2>/dev/null\n{HOLD}"


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    return tmp_path_factory.mktemp("nvidia")


@pytest.fixture(scope="module")
def gpu_server(docker_server, programs):
    """An engine that finds NVIDIA's toolkit; asking for the plain one takes these tests out where none can be."""
    assert docker_server.url
    install_toolkit(programs)
    with running_engine(programs) as server:
        yield server


@pytest.fixture(scope="module")
def driver(programs):
    return FakeDriverEnvironment(programs, 1)


@pytest.fixture(scope="module")
def service_settings(gpu_server, driver, programs):
    return {
        "PATH": f"{programs}:{os.environ['PATH']}",
        **driver.environment,
        **gpu_server.service_settings,
        "GRADIENT_DOCKER__DEFAULT_IMAGE": SHELL_IMAGE,
        "GRADIENT_WORKER__SLOTS": "4",
    }


def waits_for(service, job_id, words):
    def said():
        job = service.job(job_id)
        return job if job["reason"] == "waiting_for_gpus" and words in job["message"] else None

    return wait_until(said, f"job {job_id} to wait because {words} (now {service.job(job_id)['message']})")


def series_of(service, job_id):
    return {one["name"]: one for one in service.request("GET", f"/jobs/{job_id}/metrics").json()["series"]}


def go(service, job_id):
    (service.storage / f"go-{job_id}").touch()


def test_two_jobs_for_one_gpu_take_turns(service, gpu_server, programs):
    first = service.submit(HOLD, machineType=GPU)
    wait_until(lambda: service.job(first)["state"] == "Running", "the first to run")
    second = service.submit("echo second", machineType=GPU)
    waiting = waits_for(service, second, "0 of 1 are free")
    assert "The job needs a GPU; 0 of 1 are free on" in waiting["message"]
    assert "jobs use the others" in waiting["message"]
    without = service.wait_ended(service.submit('echo "GPUs $GRADIENT_GPUS $NVIDIA_VISIBLE_DEVICES"'))
    assert service.raw_log(without["id"]) == b"GPUs  void\n", "a CPU type runs, without a GPU"
    assert without["gpuCount"] is None
    go(service, first)
    for job_id in (first, second):
        job = service.wait_ended(job_id)
        assert (job["state"], job["gpuName"], job["gpuMem"]) == ("Stopped", "NVIDIA Test GPU", 16_384 * MIB)
        assert (job["gpuDriver"], job["gpuCuda"], job["gpuCount"]) == ("550.54.15", "12.4", 1)
        assert [(gpu["index"], gpu["uuid"]) for gpu in job["gpus"]] == [("0", "GPU-000")]
    assert service.raw_log(first) == b"GPUs 0 0\n", "the engine took the request"
    assert len(list_hooked_containers(programs)) >= 2, "and gave it to the toolkit"
    with gpu_server.client() as client:
        assert client.containers(all=True) == []


def test_what_a_job_did_with_its_gpu_is_kept(service, driver):
    job_id = service.submit(WRITES, machineType=GPU)
    wait_until(lambda: service.job(job_id)["state"] == "Running", "it to run")
    driver.use(0, 9000, 1)
    wait_until(lambda: (service.job(job_id)["usage"] or {}).get("peakGpuMemoryBytes") == 9000 * MIB, "its peak")
    driver.use(0, 10)
    measured = {"cpu_percent", "memory_bytes", "network_received_bytes", "network_sent_bytes", "gpu0_celsius"}
    wait_until(lambda: measured <= series_of(service, job_id).keys(), "all of its figures")
    go(service, job_id)
    used = service.wait_ended(job_id)["usage"]
    assert (used["peakGpuMemoryBytes"], used["peakGpuPercent"], used["meanGpuPercent"]) == (9000 * MIB, 0.0, 0.0)
    assert used["peakMemoryBytes"] > 0
    assert used["meanCpuPercent"] <= used["peakCpuPercent"]
    assert used["sampledSeconds"] > 0
    series = series_of(service, job_id)
    assert series["gpu0_memory_bytes"]["max"] == 9000 * MIB
    assert series["gpu0_watts"]["last"] == 65.2
    shown = service.cli("jobs", "show", job_id).stdout
    assert "NVIDIA Test GPU, 16 GiB, driver 550.54.15 (CUDA 12.4), host GPU 0" in shown
    assert "8.8 GiB of its memory" in shown
    page = service.request("GET", f"/ui/jobs/{job_id}").text
    assert "NVIDIA Test GPU, 16 GiB" in page
    assert "8.8 GiB of a GPU" in page


@pytest.mark.slow  # worker/backends/docker/gpu/test_host_gpus.py names it
def test_a_gpu_that_something_else_holds_is_waited_for_by_name(service, driver):
    stray = subprocess.Popen(["sleep", "600"])
    try:
        driver.use(0, 4000, stray.pid)
        job_id = service.submit("echo mine", machineType=GPU)
        waiting = waits_for(service, job_id, f"process {stray.pid} (sleep)")
        assert "GPU 0 is in use outside this service (4,000 MiB in use" in waiting["message"]
    finally:
        stray.kill()
        stray.wait()
    driver.use(0, 0)
    assert service.wait_ended(job_id)["state"] == "Stopped"


def test_a_gpu_that_breaks_under_a_job_is_taken_out_and_the_job_is_not_to_blame(service, driver):
    fails = 'until [ -e "$GRADIENT_STORAGE_DIR/go-$PS_JOB_ID" ]; do sleep 0.1; done; exit 13'
    job_id = service.submit(fails, machineType=GPU, maxAttempts=2)
    wait_until(lambda: service.job(job_id)["state"] == "Running", "it to run")
    driver.report_xids(0, 31, 79)
    go(service, job_id)
    told = waits_for(service, job_id, "GPU 0 is broken (Xid 79 by ")
    assert (told["attempt"], told["machineFaults"]) == (1, 1)
    events = service.request("GET", f"/jobs/{job_id}/events").json()["events"]
    (end,) = [event for event in events if event["kind"] == "ended"]
    assert end["reason"] == "gpu_fault"
    assert "it fell off the bus. The command ended with exit code 13" in end["message"]
    listed = service.cli("workers", "list")
    assert "GPU 0 is broken: Xid 79 by " in listed.stderr
    (worker,) = service.request("GET", "/workers").json()["workers"]
    assert "1/1" in listed.stdout
    assert "broken" in service.request("GET", "/ui/machines").text
    service.cli("workers", "resume", worker["name"])
    ended = service.wait_ended(job_id)
    assert (ended["state"], ended["reason"], ended["attempt"]) == ("Failed", "exit_nonzero", 3), "the program fails"
