"""Warnings and stops of jobs on their TPU VM, which are those of every other machine."""

import os
import re
import shutil
import subprocess
import sys

import pytest
from support.deployment import wait_until
from support.google.tpu_vm_deployment import container_settings, container_vms, served
from support.servers.private_docker_engine import SHELL_IMAGE

TRAINING = """
import multiprocessing, os, pathlib, signal, sys, time
def write(name):
    with open(pathlib.Path(os.environ["GRADIENT_ARTIFACTS_DIR"], "saved"), "a") as file:
        file.write(name + chr(10))
def warn(*_):
    write("warned")
def stop(*_):
    loader.is_alive() and write("stopped with its loader")
    sys.exit(0)
def load():
    signal.signal(signal.SIGHUP, lambda *_: sys.exit(1))
    time.sleep(600)
if __name__ == "__main__":
    loader = multiprocessing.Process(target=load, daemon=True)
    loader.start()
    signal.signal(signal.SIGUSR1, warn)
    signal.signal(signal.SIGHUP, stop)
    print("training", flush=True)
    while True:
        time.sleep(0.05)
"""
COMMAND = "bash -c '\"{}\" main.py | tee log; echo never'"


def start(service, machine="TPU", **spec):
    options = {"files": {"main.py": TRAINING}, "stopSignal": "HUP", "warnBefore": "60s:USR1", "stopGrace": 20} | spec
    job_id = service.submit(COMMAND.format(sys.executable), machineType=machine, **options)
    wait_until(lambda: b"training" in service.raw_log(job_id), "the program")
    return job_id


def warnings(service, job_id):
    messages = [event["message"] for event in service.events(job_id) if event["kind"] == "warned"]
    return [re.sub(r"\d+m? ?\d*s", "SECONDS", message) for message in messages]


@pytest.mark.parametrize(
    ("machine", "cause", "reason", "options"),
    [
        ("TPU", "its time limit", "time_limit", {"timeLimit": 12, "warnBefore": "11s:USR1"}),
        ("TPU v5e-16", "its time limit", "time_limit", {"timeLimit": 12, "warnBefore": "11s:USR1"}),
        ("TPU", "its ceiling", "cost_limit", {"maxCost": 0.02}),
    ],
)
def test_a_program_on_a_vm_is_warned_before_its_time_is_up_and_then_saves(service, machine, cause, reason, options):
    job_id = start(service, machine, **options)
    job = service.wait_ended(job_id)
    assert job["reason"] == reason, job["message"]
    assert service.artifact(job_id, "saved") == b"warned\nstopped with its loader\n"
    assert warnings(service, job_id) == [f"SIGUSR1, SECONDS before {cause}"]
    assert b"never" not in service.raw_log(job_id)


def test_a_stop_on_a_vm_has_the_signal_of_the_job_and_no_warning(service):
    job_id = start(service, timeLimit=600)
    service.request("POST", f"/jobs/{job_id}/stop")
    assert service.wait_ended(job_id)["reason"] == "stopped_by_user"
    assert service.artifact(job_id, "saved") == b"stopped with its loader\n"
    assert warnings(service, job_id) == []


def test_a_warning_on_a_vm_goes_to_no_program_that_it_would_end(service):
    job_id = start(service, timeLimit=12, warnBefore="11s:USR2")
    service.wait_ended(job_id)
    assert service.artifact(job_id, "saved") == b"stopped with its loader\n"
    assert warnings(service, job_id) == ["not sent: no program handled SIGUSR2"]


def test_a_program_is_warned_and_stopped_when_google_takes_its_vm(service, simulator):
    job_id = start(service)
    disk = simulator.cloud.machines.disk(simulator.cloud.remaining_resources()[0][0])
    script = ["bash", "worker/backends/tpu/vm/shutdown.sh"]
    subprocess.run(script, env={"GRADIENT_VM_PLACE": str(disk), "PATH": os.environ["PATH"]}, check=True)
    assert (disk / "artifacts" / "saved").read_text() == "warned\nstopped with its loader\n"
    service.request("POST", f"/jobs/{job_id}/stop")


@pytest.mark.skipif(shutil.which("docker") is None, reason="the client of the engine is not installed")
def test_the_command_of_a_container_on_a_vm_is_warned(docker_server, storage, tmp_path):
    command = "trap 'echo saved >>/artifacts/saved' USR1; echo training; while :; do sleep 0.1; done"
    with (
        container_vms(storage, docker_server, tmp_path) as simulator,
        served(simulator, storage, tmp_path, **container_settings(docker_server)) as service,
        docker_server.client() as client,
    ):
        options = {"container": SHELL_IMAGE, "timeLimit": 12, "warnBefore": "11s:USR1", "stopGrace": 5}
        job_id = service.submit(command, machineType="TPU", **options)
        job = service.wait_ended(job_id)
        client.remove_container("gradient-job", force=True)
        assert (job["reason"], service.artifact(job_id, "saved")) == ("time_limit", b"saved\n"), job["message"]
        assert warnings(service, job_id) == ["SIGUSR1, SECONDS before its time limit"]
