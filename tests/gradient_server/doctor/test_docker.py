"""The doctor's findings about the container engine."""

import pytest
from support.nvidia_driver import FakeDriver

from core.settings import Settings
from core.settings.docker import DockerSettings
from core.settings.worker import MachineSettings
from gradient_server.checks import containers
from gradient_server.checks.finding import Status
from worker.backends.docker.gpu import nvml


def settings(tmp_path, url, *, simulate=False):
    return Settings(home=tmp_path, machines=MachineSettings(simulate=simulate), docker=DockerSettings(url=url))


def test_an_engine_that_answers(docker_server, tmp_path):
    docker, isolation, firewall, gpus = containers.check(settings(tmp_path, docker_server.url))
    assert (docker.check, docker.status) == ("docker", Status.OK)
    assert (isolation.check, firewall.check) == ("isolation", "firewall")
    assert (gpus.check, gpus.status) == ("gpus", Status.OK)


def test_an_engine_that_is_not_there(tmp_path):
    (found,) = containers.check(settings(tmp_path, f"unix://{tmp_path}/none.sock"))
    assert found.status is Status.WARNING
    assert "GRADIENT_DOCKER__URL" in found.fix


def test_an_engine_whose_restart_ends_jobs_is_a_problem():
    found = containers.live_restore({"ServerVersion": "27.1", "LiveRestoreEnabled": False})
    assert (found.status, "live-restore" in found.fix) == (Status.PROBLEM, True)


def test_gpus_that_cannot_be_handed_over_are_a_problem(monkeypatch):
    FakeDriver(monkeypatch, 2)
    monkeypatch.setenv("PATH", "/nowhere")
    seen = nvml.read_gpus().samples
    assert containers.gpus(seen, {"Runtimes": {"runc": {}}}).status is Status.PROBLEM
    found = containers.gpus(seen, {"Runtimes": {"nvidia": {}}})
    assert found.message.startswith("2 NVIDIA GPUs (NVIDIA Test GPU; driver 550.54.15), and Docker can")
    names = [{"Source": "cdi", "ID": f"nvidia.com/gpu={index}"} for index in (0, 1)]
    assert containers.gpus(seen, {"DiscoveredDevices": names}).status is Status.OK
    assert containers.gpus((), {}).status is Status.OK


@pytest.mark.parametrize(
    ("options", "user", "status", "says"),
    [
        (["name=seccomp,profile=default", "name=apparmor"], None, Status.OK, "not root"),
        (["name=seccomp,profile=builtin", "name=selinux"], "7:7", Status.OK, "not root"),
        (["name=seccomp,profile=default", "name=apparmor"], "0:0", Status.PROBLEM, "GRADIENT_DOCKER__USER"),
        (["name=seccomp,profile=unconfined", "name=apparmor"], None, Status.PROBLEM, "seccomp"),
        (["name=apparmor"], None, Status.PROBLEM, "seccomp"),
        (["name=seccomp,profile=default", "name=apparmor", "name=userns"], None, Status.WARNING, "userns-remap"),
        (["name=seccomp,profile=default"], None, Status.WARNING, "AppArmor"),
    ],
)
def test_what_stands_between_a_job_and_the_machine_is_told(options, user, status, says):
    finding = containers.isolation(Settings(docker=DockerSettings(user=user)), {"SecurityOptions": options})
    assert (finding.status, says in finding.message) == (status, True), finding


@pytest.mark.parametrize(
    ("docker", "uid", "status", "says"),
    [
        ({"firewall": "off"}, 0, Status.WARNING, "FIREWALL is off"),
        ({}, 1000, Status.WARNING, "Jobs can reach this host"),
        ({"firewall": "require"}, 1000, Status.WARNING, "No job can start"),
        ({"network": "none", "firewall": "off"}, 1000, Status.OK, "no network"),
    ],
)
def test_a_firewall_that_is_not_in_force_is_told(monkeypatch, docker, uid, status, says):
    monkeypatch.setattr(containers.os, "getuid", lambda: uid)
    finding = containers.firewall(Settings(docker=DockerSettings(**docker)))
    assert (finding.status, says in finding.message) == (status, True), finding
