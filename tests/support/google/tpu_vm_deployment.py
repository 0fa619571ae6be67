"""A deployment whose TPU jobs run on simulated TPU VMs."""

import contextlib
import json
import os
import shutil

import psutil
from support.deployment import Deployment, wait_until
from support.google.tpu_simulator import NO_RESOURCES, running_simulator, split_times, tpu_options

from gradient_server.simulator.tpu.vms import SimulatedVms

LESS_RIGHTS = """#!/bin/bash
echo "$@" >>{asked}
for argument; do
    shift
    [ "$argument" = --privileged ] || set -- "$@" "$argument"
done
exec {docker} "$@"
"""


@contextlib.contextmanager
def vms(storage, **environment):
    machines = SimulatedVms(storage.environment() | environment)
    with running_simulator(machines=machines) as running:
        yield running
    machines.stop()


def container_vms(storage, engine, folder, **environment):
    """VMs whose jobs run in containers of a real engine, which need not be allowed to give a container every right, as
    a TPU VM's is; the words of each call of `docker` are in `asked`."""
    programs = folder / "programs"
    programs.mkdir()
    (programs / "docker").write_text(LESS_RIGHTS.format(asked=folder / "asked", docker=shutil.which("docker")))
    (programs / "docker").chmod(0o755)
    path = f"{programs}:{os.environ['PATH']}"
    return vms(storage, **{"GRADIENT_VM_RUN": "docker", "DOCKER_HOST": engine.url, "PATH": path} | environment)


def container_settings(engine):
    """Settings of a service whose TPU jobs run in containers."""
    return {"GRADIENT_DOCKER__URL": engine.url, "GRADIENT_TPU__RUNNER": "docker"}


def cloud_settings(simulator, storage, placement="vm"):
    """Settings of a service whose TPU jobs have a simulated cloud."""
    patient = {"timeout_seconds": 30.0, "probe_seconds": 60.0, "unhealthy_seconds": 20.0}
    made, constants = split_times(tpu_options(simulator, placement=placement, vm_poll_seconds=0.1, **patient))
    tpu = {
        f"GRADIENT_TPU__{name}".upper(): value if isinstance(value, str) else json.dumps(value)
        for name, value in made.items()
    }
    gcs = {"GRADIENT_GCS__ENDPOINT": storage.url, "GRADIENT_GCS__CA": str(storage.ca)}
    return {"GRADIENT_WORKER__SWEEP_SECONDS": "0.5", **tpu, **constants, **gcs}


@contextlib.contextmanager
def served(simulator, storage, tmp_path, placement="vm", **settings):
    deployment = Deployment(tmp_path / "home", **{**cloud_settings(simulator, storage, placement), **settings})
    try:
        deployment.start_up()
        yield deployment
    finally:
        deployment.stop()


def nothing_left(simulator, storage):
    wait_until(lambda: simulator.cloud.remaining_resources() == NO_RESOURCES, "nodes and queued resources to be gone")
    wait_until(lambda: storage.objects() == [], "the bucket to be empty")
    return True


def find_runner(job_id):
    """Return the process of the runner on the first VM of a job."""

    def find():
        for process in psutil.process_iter(["cmdline"]):
            command = " ".join(process.info["cmdline"] or ())
            if "runner.pyz" in command and f"{job_id}-1" in command:
                return process
        return None

    return wait_until(find, "the runner")
