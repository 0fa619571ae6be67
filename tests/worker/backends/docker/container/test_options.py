"""Container options that jobs ask for, and privileges that an administrator grants, on a real engine."""

import os
import socket

import pytest
from support.backend_harness import BackendHarness
from support.nvidia_driver import MIB, FakeDriver
from support.servers.private_docker_engine import SHELL_IMAGE

from core.catalogue.container_privileges import ContainerPolicy
from core.errors import SpecInvalid
from core.settings import Settings
from core.settings.docker import DockerSettings
from core.settings.worker import MachineSettings
from worker.backends import make_backend
from worker.backends.base import LaunchError
from worker.backends.docker.container.granted_privileges import policy_problems


@pytest.fixture
def make(docker_server, tmp_path):
    places = []

    def place(opened="", **settings):
        file = tmp_path / "machines.toml"
        file.write_text(f"[CPU.docker]\n{opened}\n")
        machines = MachineSettings(simulate=False, file=file)
        places.append(
            BackendHarness("docker", tmp_path / "home", docker_server.settings(**settings), machines=machines)
        )
        return places[-1]

    yield place
    for one in places:
        one.clear()


def inspected(server, place):
    with server.client() as client:
        return client.inspect_container(f"gradient-{place.job_id}-1")


def said(place, command, **options):
    spec = place.spec(command, **options)
    assert place.wait(place.launch(spec)).code == 0, place.output(spec)
    return place.output(spec).decode().split()


def refusal(place, **options):
    with pytest.raises(LaunchError) as error:
        place.launch(place.spec("true", **options))
    assert place.backend.owned() == []
    return error.value.reason, error.value.detail


def test_a_working_directory_that_is_missing_is_told_and_never_made(make):
    place = make()
    assert refusal(place, working_dir="/storage/nowhere") == ("no_working_dir", "/storage/nowhere")
    assert not (place.spec("true").storage / "nowhere").exists(), "the engine would have made it, as root"


def test_root_is_the_administrators_to_open(make):
    closed = make(user="4711:4711")
    assert refusal(closed, user="root")[0] == "option_refused"
    assert refusal(closed, user="4711:0")[0] == "option_refused", "its group, too"
    assert said(make("root = true", user="4711:4711"), "id -u", user="root") == ["0"]


def test_a_worker_that_is_not_root_cannot_hand_files_over(make, monkeypatch):
    place = make(user="4711:4711")
    monkeypatch.setattr(os, "getuid", lambda: 4711)
    reason, detail = refusal(place, user="4712")
    assert (reason, "cannot give a job's files to user 4712" in detail) == ("option_refused", True)


def test_what_is_opened_reaches_the_container_and_nothing_more(make, docker_server, tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    (data / "file").write_text("content\n")
    place = make(
        f'capabilities = ["NET_RAW"]\ndevices = ["/dev/zero"]\nnetwork = "none"\npids = 5000\n'
        f'mounts = {{"{data}" = "/data"}}'
    )
    command = "cat /data/file; touch /data/new 2>/dev/null || echo closed; ls /sys/class/net"
    assert said(place, command) == ["content", "closed", "lo"]
    host = inspected(docker_server, place)["HostConfig"]
    assert (host["CapDrop"], host["CapAdd"], host["Privileged"]) == (["ALL"], ["NET_RAW"], False)
    assert (host["PidsLimit"], host["NetworkMode"]) == (5000, "none")
    assert [device["PathOnHost"] for device in host["Devices"]] == ["/dev/zero"]
    assert host["SecurityOpt"] == ["no-new-privileges"]


def test_a_machine_type_with_a_network_of_its_own_has_no_nodes_on_several_hosts(make):
    reason, detail = refusal(make('network = "none"'), host_network=True)
    assert (reason, "containers of CPU have the network 'none' here" in detail) == ("option_refused", True)


def test_an_opening_that_this_host_cannot_give_is_told(make):
    assert refusal(make('devices = ["/dev/no-such-thing"]')) == (
        "launch_failed",
        "[CPU.docker] grants privileges that this host cannot provide: /dev/no-such-thing does not exist",
    )


def test_links_and_sockets_lead_nowhere_they_must_not(tmp_path):
    socket_folder, home = tmp_path / "engine", tmp_path / "home"
    socket_folder.mkdir()
    home.mkdir()
    with socket.socket(socket.AF_UNIX) as engine:
        engine.bind(str(socket_folder / "docker.sock"))
    (tmp_path / "link").symlink_to("/etc")
    settings = Settings(home=home, docker=DockerSettings(url=f"unix://{socket_folder}/docker.sock"))

    def found(source):
        return list(policy_problems(ContainerPolicy().model_copy(update={"mounts": {str(source): "/data"}}), settings))

    assert "which is a system folder of the host" in found(tmp_path / "link")[0]
    assert "a folder of the service or the container engine" in found(socket_folder)[0]
    assert "a folder of the service or the container engine" in found(tmp_path)[0]
    assert "is not a folder" in found(socket_folder / "docker.sock")[0]
    assert "a folder of the service or the container engine" in found(home)[0]
    assert found(socket_folder.parent.parent / "nowhere") == [f"{tmp_path.parent}/nowhere is not a folder"]


def test_a_file_with_a_mistake_is_told_when_the_worker_starts(make):
    place = make()
    place.settings.machines.file.write_text("[CPU.docker]\nprivileged = true\n")
    with pytest.raises(SpecInvalid, match="jobs are never privileged"):
        make_backend("docker", place.settings)


def test_a_gpu_that_was_taken_meanwhile_is_not_handed_over(make, monkeypatch):
    driver = FakeDriver(monkeypatch, 1)
    driver.memory[0], driver.pids[0] = 2000 * MIB, [os.getpid()]
    monkeypatch.setattr("worker.backends.docker.gpu.device_requests.check_supported", lambda *_, **__: None)
    reason, detail = refusal(make(), gpus=("0",))
    assert reason == "gpu_in_use"
    assert detail.startswith(f"GPU 0: 2,000 MiB in use, by process {os.getpid()} (")


def test_an_engine_without_the_toolkit_says_so_before_anything_is_made(make, docker_server, monkeypatch):
    FakeDriver(monkeypatch, 1)
    assert refusal(make(), gpus=("0",))[0] == "no_gpu_runtime"
    # The engine passes the check for the toolkit, and refuses when the container is started.
    monkeypatch.setattr("worker.backends.docker.gpu.device_requests.check_supported", lambda *_, **__: None)
    reason, detail = refusal(make(), gpus=("0",))
    assert (reason, "could not select device driver" in detail) == ("no_gpu_runtime", True)
    with docker_server.client() as client:
        assert client.containers(all=True, filters={"ancestor": SHELL_IMAGE}) == []
