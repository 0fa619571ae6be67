"""Jobs on TPU slices of several hosts: one command on all of them, with JAX's own processes and collectives."""

import re
import signal
import sys
import textwrap

import psutil
import pytest
from support.browser import Browser
from support.deployment import wait_until
from support.google.tpu_vm_deployment import nothing_left, served

from core.system.processes import running_processes

SLICE = "TPU v5e-16"
ALL_REDUCE = textwrap.dedent(
    """
    import os

    import jax

    addresses = os.environ["TPU_WORKER_HOSTNAMES"].split(",")
    jax.distributed.initialize(num_processes=len(addresses), process_id=int(os.environ["TPU_WORKER_ID"]))
    total = jax.experimental.multihost_utils.process_allgather(jax.numpy.array([10.0 ** jax.process_index()])).sum()
    print(f"{jax.process_index()} of {jax.process_count()}: {total:.0f}", flush=True)
    with open(os.environ["GRADIENT_ARTIFACTS_DIR"] + "/total", "w") as file:
        file.write(f"{total:.0f}")
    """
)
SUSPENDED = "import os, time\nprint('up', os.environ['TPU_WORKER_ID'], flush=True)\ntime.sleep(600)"


def submit(service, program):
    spec = {"machineType": SLICE, "envVars": {"PROGRAM": program}, "stopGrace": 5}
    return service.submit(f'"{sys.executable}" -c "$PROGRAM"', **spec)


def log_lines(service, job_id):
    return service.raw_log(job_id).decode().splitlines()


def wait_until_up(service, job_id):
    wait_until(lambda: sum("up" in line for line in log_lines(service, job_id)) == 4, "every host's first line")


def processes(job_id, rank):
    """Return the Python programs of one host of a job."""
    found = []
    for process in running_processes():
        try:
            own = process.environ()
            if (own.get("GRADIENT_JOB_ID"), own.get("TPU_WORKER_ID")) == (job_id, str(rank)):
                found += [process] if "PROGRAM" in own and "python" in process.name() else []
        except psutil.Error:
            continue
    return found


def test_four_hosts_reduce_over_the_addresses_that_the_service_gave(service, simulator, storage):
    job_id = submit(service, "import jax.experimental.multihost_utils\n" + ALL_REDUCE)
    job = service.wait_ended(job_id, 100)
    lines = log_lines(service, job_id)
    assert (job["state"], job["exitCode"]) == ("Stopped", 0), (job["message"], lines)
    results = [line for line in lines if re.search(r"\d of 4: ", line)]
    assert sorted(results) == [f"[{rank}] {rank} of 4: 1111" for rank in range(4)]
    paths = [file["path"] for file in service.artifacts(job_id)["files"]]
    assert paths == ["hosts/1/total", "hosts/2/total", "hosts/3/total", "total"]
    assert service.artifact(job_id, "hosts/3/total") == b"1111"
    assert job["cost"] > 0
    assert nothing_left(simulator, storage)


def test_a_killed_program_ends_all_hosts_and_is_named(service, simulator, storage):
    job_id = submit(service, SUSPENDED)
    wait_until_up(service, job_id)
    for process in processes(job_id, 2):
        process.send_signal(signal.SIGKILL)
    job = service.wait_ended(job_id)
    assert (job["state"], job["exitCode"], job["reason"]) == ("Failed", 137, "tpu_host_failed"), job["message"]
    assert re.search(r"rank 2 of 4 nodes \(127\.\d+\.\d+\.3\) failed first, with exit code 137", job["message"])
    assert [(node["rank"], node["state"]) for node in job["tpu"]["nodes"]] == [(rank, "Failed") for rank in range(4)]
    assert job["tpu"]["nodes"][2]["exitCode"] == 137
    assert nothing_left(simulator, storage)


def test_the_nodes_of_a_slice_are_shown_as_those_of_a_job_over_several_hosts(service, chromium, tmp_path):
    going_on = tmp_path / "going-on"
    job_id = service.submit(
        f'echo up; [ $TPU_WORKER_ID = 1 ] || while [ ! -e "{going_on}" ]; do sleep 0.05; done', machineType=SLICE
    )
    wait_until_up(service, job_id)

    def nodes():
        return [(node["state"], node["exitCode"]) for node in service.job(job_id)["tpu"]["nodes"]]

    one_ended = [("Running", None), ("Stopped", 0), ("Running", None), ("Running", None)]
    wait_until(lambda: nodes() == one_ended, "the end of one node to be known")
    shown = service.cli("jobs", "show", job_id).stdout
    assert re.findall(r"^ *(\d) +(\w+) +127\.\d+\.\d+\.(\d) *(\d*)", shown, re.MULTILINE) == [
        ("0", "Running", "1", ""),
        ("1", "Succeeded", "2", "0"),
        ("2", "Running", "3", ""),
        ("3", "Running", "4", ""),
    ], shown
    assert "4 nodes" in shown
    assert service.cli("jobs", "logs", job_id, "--rank", "3").stdout == "up\n"
    refused = service.cli("jobs", "logs", job_id, "--rank", "4", code=2).stderr
    assert f"rank: {job_id} has 4 nodes, of rank 0 to 3" in refused
    browser = Browser(chromium)
    browser.sign_in(service.cli_json["url"], service.cli_json["apiKey"])
    browser.open(f"{service.cli_json['url']}/ui/jobs/{job_id}")
    assert browser.text("a[href$='#nodes']") == "4 nodes"
    assert re.sub(r"\s+", " ", browser.text("#nodes tbody tr:nth-child(2)")).startswith("rank 1 Succeeded 127.")
    browser.click("#nodes tbody tr:nth-child(3) a")
    browser.wait_for("document.querySelector('[data-matches]')?.innerText.includes('[2] up')")
    assert browser.evaluate("document.querySelectorAll('[data-matches] .row').length") == 1
    browser.open(f"{service.cli_json['url']}/ui/jobs")
    assert "4 nodes" in browser.text(f"th:has(#{job_id})")
    going_on.touch()
    assert service.wait_ended(job_id)["state"] == "Stopped"
    assert nodes() == [("Stopped", 0)] * 4
    browser.close()


@pytest.mark.slow  # worker/backends/tpu/test_vm.py loses one
def test_a_host_that_is_lost_is_named(simulator, storage, tmp_path):
    with served(simulator, storage, tmp_path, **{"worker.backends.tpu.times.VM_SILENT_SECONDS": 6}) as service:
        job_id = submit(service, SUSPENDED)
        wait_until_up(service, job_id)
        (node,) = simulator.cloud.remaining_resources()[0]
        simulator.cloud.machines.end_host(node, 1)
        job = service.wait_ended(job_id, 100)
        assert (job["state"], job["reason"]) == ("Error", "tpu_unhealthy"), job["message"]
        assert re.search(r"rank 1 of 4 nodes \(127\.\d+\.\d+\.2\)", job["message"])
        assert nothing_left(simulator, storage)


def test_a_stop_reaches_every_host(service, simulator, storage):
    job_id = service.submit(
        'trap "echo saved $TPU_WORKER_ID; exit 0" TERM; echo up; while :; do sleep 0.05; done', machineType=SLICE
    )
    wait_until_up(service, job_id)
    service.request("POST", f"/jobs/{job_id}/stop")
    assert service.wait_ended(job_id)["state"] == "Cancelled"
    assert {line for line in log_lines(service, job_id) if "saved" in line} == {f"[{n}] saved {n}" for n in range(4)}
    assert nothing_left(simulator, storage)
