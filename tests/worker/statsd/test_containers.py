"""Containers that send metrics to the host's end of their network, through the firewall around it."""

import re
import subprocess
from pathlib import Path

import pytest
from support.deployment import SERVER_PROGRAM, Deployment, wait_until
from support.servers.private_docker_engine import SHELL_IMAGE, build_layer, list_busybox_commands, read_busybox

# test_listener.py has the same attack by a job in a sandbox.
pytestmark = [pytest.mark.integration, pytest.mark.slow]

PORT = 8125
BASH = "gradient-test:bash"
SEND = """
export gateway=$(ip route | awk '/^default/ {{print $3}}') job={}
for value in 1 2 3; do
    value=$value bash -c 'printf "loss:$value|g|#container_name:$job" >/dev/udp/$gateway/8125'
done
sleep 3
"""


def bash_image():
    """Busybox, and a bash for its way to send datagrams."""
    linked = subprocess.run(["ldd", "/bin/bash"], capture_output=True, text=True, check=True).stdout
    libraries = re.findall(r"(/\S+) \(0x", linked)
    files = {"bin/busybox": read_busybox(), "bin/bash": Path("/bin/bash").read_bytes(), "tmp/": None}
    files |= {library.lstrip("/"): Path(library).read_bytes() for library in libraries}
    return build_layer(files, links=[name for name in list_busybox_commands() if name != "bash"])


@pytest.fixture
def service(docker_server, tmp_path):
    """The worker is where the engine's network is, as it would be on any host."""
    deployment = Deployment(
        tmp_path / "home",
        **docker_server.service_settings | {"GRADIENT_DOCKER__FIREWALL": "require"},
        GRADIENT_STATSD__PORT=str(PORT),
    )
    deployment.start_api()
    with docker_server.client() as client:
        client.import_image_from_data(bash_image(), repository="gradient-test", tag="bash", changes=["ENV PATH=/bin"])
    with (tmp_path / "worker.log").open("wb") as log:
        worker = subprocess.Popen(
            [*docker_server.network, str(SERVER_PROGRAM), "worker", "--name", "w1"],
            env=deployment.environment(),
            stdout=log,
            stderr=log,
        )
    yield deployment
    worker.kill()
    worker.wait()
    deployment.stop()
    with docker_server.client() as client:
        for container in client.containers(all=True):
            client.remove_container(container["Id"], force=True)


def series(service, job):
    found = service.request("GET", f"/jobs/{job}/metrics").json()["series"]
    return {one["name"]: [point["value"] for point in one["points"]] for one in found if one["source"] == "job"}


def stop(service, job):
    service.request("POST", f"/jobs/{job}/stop")
    service.wait_ended(job)


def test_a_container_sends_its_metrics_and_nobody_else_s(service):
    # The network is made with the first job, and listened at soon after.
    first = service.submit(f"while :; do {SEND.format('$PS_JOB_ID')} done", container=BASH)
    victim = service.submit("sleep 300", container=SHELL_IMAGE)
    wait_until(lambda: series(service, first), "the network to be listened at")
    stop(service, first)
    own = service.submit(SEND.format("$PS_JOB_ID"), container=BASH)
    forged = service.submit(SEND.format(victim), container=BASH)
    for job in (own, forged):
        assert service.wait_ended(job)["exitCode"] == 0, service.raw_log(job)
    assert series(service, own) == {"loss": [1.0, 2.0, 3.0]}
    assert series(service, forged)["statsd_dropped"][-1] >= 1
    stop(service, victim)
    assert series(service, victim) == {}
