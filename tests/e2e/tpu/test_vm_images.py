"""Images of jobs on TPU VMs, over a real engine: private ones that the VM's own account pulls, users, shared memory."""

import contextlib
import shutil
import subprocess
import sys

import pytest
from support.deployment import wait_until
from support.google.tpu_vm_deployment import container_settings, container_vms, nothing_left, served
from support.servers import private_registry
from support.servers.private_docker_engine import SHELL_IMAGE
from support.servers.private_registry import IMAGE_NAME, IMAGE_TAG

pytestmark = pytest.mark.skipif(shutil.which("docker") is None, reason="the client of the engine is not installed")

TOKEN = "simulated"
"""Token of a simulated VM's account."""
PORT = 5611
HOST = f"127.0.0.1:{PORT}"
IMAGE = f"{HOST}/{IMAGE_NAME}:{IMAGE_TAG}"


@contextlib.contextmanager
def registry(engine, folder, login):
    """A private registry beside the engine."""
    layer = folder / "layer.tar"
    with engine.client() as client:
        container = client.create_container(SHELL_IMAGE, ["true"])["Id"]
        layer.write_bytes(b"".join(client.export(container)))
        client.remove_container(container)
    program = [
        sys.executable,
        private_registry.__file__,
        "127.0.0.1",
        str(PORT),
        login,
        "token",
        str(layer),
    ]
    started = subprocess.Popen([*engine.network, *program], stderr=subprocess.DEVNULL)
    look = [sys.executable, "-c", f"import socket; socket.create_connection(('127.0.0.1', {PORT}), 1)"]
    wait_until(
        lambda: subprocess.run([*engine.network, *look], capture_output=True, check=False).returncode == 0,
        "the registry",
    )
    try:
        yield
    finally:
        started.kill()
        started.wait()


@pytest.fixture
def client(docker_server):
    with docker_server.client() as client:
        yield client
        for container in client.containers(all=True, filters={"name": "gradient-job"}):
            client.remove_container(container["Id"], force=True)
        if client.images(name=IMAGE):
            client.remove_image(IMAGE)


@pytest.mark.parametrize("allowed", [True, pytest.param(False, marks=pytest.mark.slow)])
@pytest.mark.usefixtures("client")
def test_the_vms_account_pulls_a_private_image(docker_server, storage, tmp_path, allowed):
    known = {"GRADIENT_VM_REGISTRIES": HOST}
    with (
        registry(docker_server, tmp_path, f"oauth2accesstoken:{TOKEN if allowed else 'another'}"),
        container_vms(storage, docker_server, tmp_path, **known) as simulator,
        served(simulator, storage, tmp_path, **container_settings(docker_server)) as service,
    ):
        job_id = service.submit("echo pulled", machineType="TPU", container=IMAGE)
        job = service.wait_ended(job_id)
        if allowed:
            assert (job["state"], service.raw_log(job_id)) == ("Stopped", b"pulled\n"), job["message"]
        else:
            assert job["reason"] == "image_pull"
            assert f"{HOST} rejected the login of oauth2accesstoken" in job["message"]
        assert TOKEN not in (tmp_path / "asked").read_text().replace(storage.url, "").split()
        assert nothing_left(simulator, storage)


@pytest.mark.usefixtures("client")
def test_an_image_without_root_has_its_folders_and_its_shared_memory(docker_server, storage, tmp_path):
    command = (
        'echo "$(id -u):$(id -g)"; touch made /artifacts/model /storage/made && echo written; '
        "df -k /dev/shm | tail -n 1 | awk '{print $2}'"
    )
    with (
        container_vms(storage, docker_server, tmp_path) as simulator,
        served(simulator, storage, tmp_path, **container_settings(docker_server)) as service,
    ):
        options = {"machineType": "TPU", "container": SHELL_IMAGE, "user": "1234:2345", "sharedMemMb": 96}
        job_id = service.submit(command, **options)
        job = service.wait_ended(job_id)
        said = service.raw_log(job_id).decode().splitlines()
        assert said == ["1234:2345", "written", str(96 * 1024)], job["message"]
        assert [file["path"] for file in service.artifacts(job_id)["files"]] == ["model"]
        assert nothing_left(simulator, storage)
