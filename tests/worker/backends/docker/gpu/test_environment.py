"""The environment of containers that have GPUs, which NVIDIA's programs read as root of the host."""

import os

import pytest
from support.backend_harness import BackendHarness
from support.nvidia_driver import FakeDriver, install_toolkit
from support.servers.private_docker_engine import SHELL_IMAGE, running_engine

from worker.backends.base import LaunchError

HOSTILE = {
    "LD_PRELOAD": "/proc/self/cwd/evil.so",
    "LD_AUDIT": "/proc/self/cwd/evil.so",
    "NVIDIA_VISIBLE_DEVICES": "all",
    "NVIDIA_MIG_CONFIG_DEVICES": "all",
    "NVIDIA_IMEX_CHANNELS": "0",
}


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    return tmp_path_factory.mktemp("nvidia")


@pytest.fixture(scope="module")
def engine(docker_server, programs):
    """An engine with NVIDIA's toolkit, and an image that carries the attack in its own environment."""
    assert docker_server.url
    install_toolkit(programs)
    with running_engine(programs) as server:
        with server.client() as client:
            made = client.create_container(SHELL_IMAGE, ["true"])["Id"]
            changes = [f"ENV {name}={value}" for name, value in HOSTILE.items()]
            client.commit(made, repository="hostile", tag="env", changes=[*changes, "ENV LD_LIBRARY_PATH=/opt/lib"])
            client.remove_container(made)
        yield server


@pytest.fixture
def place(engine, programs, tmp_path, monkeypatch):
    FakeDriver(monkeypatch, 1)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    made = BackendHarness("docker", tmp_path, engine.settings())
    yield made
    made.clear()


def environment(place, gpus, env):
    spec = place.spec("env", container="hostile:env", gpus=gpus, env=env)
    assert place.wait(place.launch(spec)).code == 0
    return dict(line.split("=", 1) for line in place.output(spec).decode().splitlines())


@pytest.mark.parametrize("env", [{}, HOSTILE], ids=["by its image", "by its user"])
def test_what_has_gpus_loads_no_library_into_programs_of_the_host(place, env):
    found = environment(place, ("0",), env)
    assert {name: found[name] for name in HOSTILE if name in found} == {"NVIDIA_VISIBLE_DEVICES": "0"}
    assert found["LD_LIBRARY_PATH"] == "/opt/lib", "every image with CUDA needs it"


def test_what_has_no_gpus_keeps_its_allocator_and_gets_no_gpu(place):
    found = environment(place, (), {"LD_PRELOAD": "/usr/lib/tcmalloc.so", "NVIDIA_VISIBLE_DEVICES": "all"})
    assert (found["LD_PRELOAD"], found["NVIDIA_VISIBLE_DEVICES"]) == ("/usr/lib/tcmalloc.so", "void")


def test_no_gpu_is_handed_over_by_a_toolkit_that_lets_containers_out(place, programs):
    program = programs / "nvidia-ctk"
    try:
        program.write_text("#!/bin/sh\necho NVIDIA Container Toolkit CLI version 1.17.7\n")
        program.chmod(0o755)
        with pytest.raises(LaunchError) as error:
            place.launch(place.spec("true", gpus=("0",)))
        assert (error.value.reason, "1.17.7 lets a container" in error.value.detail) == ("no_gpu_runtime", True)
        assert place.backend.owned() == []
        program.write_text("#!/bin/sh\necho NVIDIA Container Toolkit CLI version 1.17.8\n")
        assert place.wait(place.launch(place.spec("true", gpus=("0",)))).code == 0
    finally:
        program.unlink()
