"""The worker of docker-compose.yml's profile `docker`: in a container with its rights, it runs jobs in others."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import yaml
from support.deployment import wait_until
from support.servers.private_docker_engine import SHELL_IMAGE, build_layer, list_busybox_commands, read_busybox

ROOT = Path(__file__).parent.parent.parent
WORKER = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]["worker-docker"]
USER = 10001
FIREWALL_IMAGE, EMPTY_IMAGE = "gradient-test:firewall", "gradient-test:nothing"
COUNTS = "i=0; while [ $i -lt 300 ]; do echo line $i; i=$((i+1)); sleep 0.02; done; exit 9"


@pytest.fixture
def home():
    """A folder that the user of the containers owns and reaches."""
    folder = Path(tempfile.mkdtemp(prefix="gradient-", dir="/var/tmp"))
    os.chown(folder, USER, USER)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def client(docker_server):
    programs = {"bin/busybox": read_busybox()}
    linked = subprocess.run(["ldd", "/usr/sbin/iptables"], capture_output=True, text=True, check=True).stdout
    extensions = Path(re.search(r"(/\S+/)libxtables", linked)[1]).resolve() / "xtables"
    for name in ("iptables", "iptables-restore", "ip6tables", "ip6tables-restore"):
        programs[f"usr/sbin/{name}"] = Path(f"/usr/sbin/{name}").read_bytes()
    for path in [*re.findall(r"(/\S+) \(", linked), *extensions.iterdir()]:
        programs[str(path).removeprefix("/")] = Path(path).read_bytes()
    links = list_busybox_commands()
    # The image of compose cannot be built without a registry: the programs are this machine's, read-only.
    folders = {f"{name}/": None for name in ("etc", "opt", "proc", "sys", "tmp", "usr", "var/tmp", "run")}
    with docker_server.client() as client:
        client.import_image_from_data(
            build_layer(programs, links=links), repository="gradient-test", tag="firewall", changes=["ENV PATH=/bin"]
        )
        client.import_image_from_data(build_layer(folders), repository="gradient-test", tag="nothing")
        yield client


def start_worker(client, server, home):
    """Start service and worker in one container with the worker's rights."""
    folders = {"/usr", "/etc", "/bin", "/lib", "/lib64", str(ROOT), sys.prefix, sys.base_prefix}
    host = client.create_host_config(
        binds=[f"{one}:{one}:ro" for one in sorted(folders)]
        + [f"{home}:{home}", f"{server.socket}:/var/run/docker.sock"],
        cap_drop=WORKER["cap_drop"],
        security_opt=WORKER["security_opt"],
        read_only=WORKER["read_only"],
        init=WORKER["init"],
        tmpfs={"/tmp": "size=1g,mode=1777"},
        network_mode=WORKER["network_mode"],
        group_add=[str(server.socket.stat().st_gid)],
    )
    environment = {
        name: value for name, value in WORKER["environment"].items() if "MACHINES" in name or "DOCKER" in name
    }
    environment |= {
        "GRADIENT_DOCKER__FIREWALL_IMAGE": FIREWALL_IMAGE,
        "GRADIENT_DOCKER__PULL": "never",
        "GRADIENT_HOME": str(home),
        "HOME": "/tmp",
        "PATH": f"{sys.prefix}/bin:/usr/bin:/usr/sbin",
        "PYTHONPATH": str(ROOT),
    }
    made = client.create_container(
        EMPTY_IMAGE,
        [f"{sys.prefix}/bin/gradient-server", "up", "--backend", "docker"],
        user=WORKER["user"],
        host_config=host,
        working_dir="/tmp",
        environment=environment,
    )["Id"]
    client.start(made)
    return made


def cli(client, worker, *words, code=0):
    asked = client.exec_create(worker, [f"{sys.prefix}/bin/gradient-cli", *words], user=WORKER["user"])
    # What it prints, before what it says: they are two streams, whose parts come in any order.
    output = b"".join(part for part in client.exec_start(asked["Id"], demux=True) if part).decode()
    assert client.exec_inspect(asked["Id"])["ExitCode"] == code, output
    return output


def test_jobs_run_in_the_engines_containers_fenced_and_outlive_their_worker(docker_server, client, home):
    worker = start_worker(client, docker_server, home)
    wait_until(lambda: "http://" in client.logs(worker).decode(), "the service")
    create = ("jobs", "create", "--machineType", "CPU", "--workspace", "none", "--container", SHELL_IMAGE, "--command")
    output = cli(client, worker, *create, "id -u; echo weights >$GRADIENT_ARTIFACTS_DIR/model.bin; exit 3", code=3)
    assert f"\n{USER}\n" in f"\n{output}"
    [stored] = home.glob("artifacts/**/model.bin")
    assert stored.read_bytes() == b"weights\n"
    rules = subprocess.run([*docker_server.network, "iptables", "-S"], capture_output=True, text=True, check=True)
    assert "-j GRADIENT-IN-" in rules.stdout, "the engine set them: this worker may not"
    job_id = cli(client, worker, *create, COUNTS, "--detach").split()[0]
    wait_until(lambda: "line 10\n" in cli(client, worker, "jobs", "logs", job_id), "its first lines")
    client.remove_container(worker, force=True)
    worker = start_worker(client, docker_server, home)
    wait_until(lambda: "http://" in client.logs(worker).decode(), "the service")
    cli(client, worker, "jobs", "wait", job_id, code=9)
    lines = cli(client, worker, "jobs", "logs", job_id).splitlines()
    assert [line for line in lines if line.startswith("line ")] == [f"line {i}" for i in range(300)]
    client.remove_container(worker, force=True)
    assert client.containers(all=True) == []
