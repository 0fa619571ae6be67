"""The worker of docker-compose.yml isolates its jobs, in a container with exactly its rights."""

import io
import sys
import tarfile
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parent.parent.parent
FOLDERS = ("etc", "opt", "proc", "root", "run", "sys", "tmp", "usr", "var")
LINKS = ("bin", "lib", "lib64", "sbin")
LOOK = """
from core.settings import Settings
from worker.backends.process.job_sandbox import sandbox_support
print("sandbox:", sandbox_support().problem)
"""


@pytest.fixture
def client(docker_server):
    with docker_server.client() as client:
        files = io.BytesIO()
        with tarfile.open(fileobj=files, mode="w") as archive:
            for name in FOLDERS:
                folder = tarfile.TarInfo(name)
                folder.type, folder.mode = tarfile.DIRTYPE, 0o755
                archive.addfile(folder)
            for name in LINKS:
                link = tarfile.TarInfo(name)
                link.type, link.linkname = tarfile.SYMTYPE, f"usr/{name}"
                archive.addfile(link)
        client.import_image_from_data(files.getvalue(), repository="gradient-test", tag="empty")
        yield client


def test_it_makes_sandboxes(client):
    """The programs are this machine's, read-only: the image cannot be built without a registry."""
    worker = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]["worker"]
    folders = {"/usr", "/etc", str(ROOT), sys.prefix, sys.base_prefix}
    host = client.create_host_config(
        binds=[f"{one}:{one}:ro" for one in sorted(folders)],
        cap_drop=worker["cap_drop"],
        security_opt=[one.replace(":unconfined", "=unconfined") for one in worker["security_opt"]],
        read_only=worker["read_only"],
        tmpfs={"/tmp": "size=1g,mode=1777"},
        network_mode="none",
        devices=worker["devices"],
    )
    made = client.create_container(
        "gradient-test:empty",
        [sys.executable, "-c", LOOK],
        user=worker["user"],
        host_config=host,
        working_dir="/tmp",
        environment={"HOME": "/tmp", "PATH": "/usr/bin:/usr/sbin", "PYTHONPATH": str(ROOT)},
    )
    try:
        client.start(made)
        client.wait(made, timeout=60)
        said = client.logs(made).decode()
    finally:
        client.remove_container(made, force=True)
    assert "sandbox: None" in said, said
