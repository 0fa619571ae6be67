"""Jobs of the process backend that send metrics, and a job that sends what it should not."""

import socket
import sys
from types import SimpleNamespace

import psutil
import pytest
from support.deployment import Deployment, wait_until

from core.settings import Settings
from worker.statsd.listener import Listener

pytestmark = pytest.mark.integration

SEND = """
import os, socket, sys, time
link = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
link.connect(("127.0.0.1", int(sys.argv[1])))
job = sys.argv[2] if len(sys.argv) > 2 else os.environ["PS_JOB_ID"]
for value in range(5):
    link.send(f"loss:{value}|g|#container_name:{job}".encode())
    time.sleep(0.05)
print("sent", flush=True)
"""
SEE = """
while not os.path.exists(os.environ["GRADIENT_METRICS_FILE"]) or {!r} not in open(
    os.environ["GRADIENT_METRICS_FILE"]
).read():
    time.sleep(0.05)
"""
SEND_AND_SEE = SEND + SEE.format('"loss": 4')
FORGE_AND_SEE = SEND + SEE.format('"statsd_dropped": 5')
FLOOD = """
import os, socket, sys, time
link = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
link.connect(("127.0.0.1", int(sys.argv[1])))
until = time.monotonic() + 3
while time.monotonic() < until:
    for junk in (b"\\xff" * 60000, b"a:b:c|d", b"x:1|g", b"y" * 5000 + b":1|c"):
        link.send(junk)
        link.send(f"n{time.monotonic_ns()}:1|g|#container_name:{os.environ['PS_JOB_ID']}".encode())
"""


@pytest.fixture
def port():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@pytest.fixture
def service(tmp_path, port):
    deployment = Deployment(tmp_path / "home", GRADIENT_STATSD__PORT=str(port))
    deployment.start_up()
    yield deployment
    deployment.stop()


def python(program, tmp_path, *arguments):
    file = tmp_path / f"{len(program)}.py"
    file.write_text(program)
    return " ".join([sys.executable, str(file), *map(str, arguments)])


def series(service, job):
    found = service.request("GET", f"/jobs/{job}/metrics").json()["series"]
    return {one["name"]: [point["value"] for point in one["points"]] for one in found if one["source"] == "job"}


def test_what_a_job_sends_becomes_its_metrics(service, port, tmp_path):
    job = service.submit(python(SEND_AND_SEE, tmp_path, port))
    assert service.wait_ended(job)["exitCode"] == 0
    assert series(service, job) == {"loss": [0.0, 1.0, 2.0, 3.0, 4.0]}


def test_a_job_cannot_write_into_another_s_metrics(service, port, tmp_path):
    victim = service.submit("sleep 300")
    wait_until(lambda: service.job(victim)["state"] == "Running", "the victim to run")
    forger = service.submit(python(FORGE_AND_SEE, tmp_path, port, victim))
    assert service.wait_ended(forger)["exitCode"] == 0
    assert series(service, forger)["statsd_dropped"][-1] == 5
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:  # no job of anybody's
        stranger.sendto(f"loss:1|g|#container_name:{victim}".encode(), ("127.0.0.1", port))
        assert series(service, victim) == {}
    service.request("POST", f"/jobs/{victim}/stop")
    service.wait_ended(victim)
    assert series(service, victim) == {}


def test_a_flood_harms_nobody(service, port, tmp_path):
    [api] = service._processes
    before = psutil.Process(api.pid).memory_info().rss
    flooding = service.submit(python(FLOOD, tmp_path, port))
    other = service.submit(python(SEND, tmp_path, port))
    assert service.wait_ended(other)["exitCode"] == 0
    assert service.wait_ended(flooding)["exitCode"] == 0
    found = series(service, flooding)
    assert (len(found) <= 201, found["statsd_dropped"][-1] > 0) == (True, True)
    assert psutil.Process(api.pid).memory_info().rss - before < 200 * 1024**2
    last = service.submit(python(SEND_AND_SEE, tmp_path, port))
    service.wait_ended(last)
    assert series(service, last)["loss"][-1] == 4.0


CONNECT_AND_WAIT = """
import pathlib, socket, sys, time
folder, port = pathlib.Path(sys.argv[1]), int(sys.argv[2])
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
    client.connect(("127.0.0.1", port))
    while not (folder / "go").exists():
        client.send(b"loss:1|g")
        time.sleep(0.05)
"""


def test_a_port_that_is_taken_is_no_obstacle(tmp_path, port):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
        other.bind(("127.0.0.1", port))
        deployment = Deployment(tmp_path / "home", GRADIENT_STATSD__PORT=str(port))
        try:
            process = deployment.start_up()
            assert deployment.wait_ended(deployment.submit("true"))["exitCode"] == 0
            assert "statsd_not_bound" not in process.read_log(), "no job has lost a metric"
            sender = deployment.submit(python(CONNECT_AND_WAIT, tmp_path, tmp_path, port))
            wait_until(lambda: "statsd_not_bound" in process.read_log(), "the warning")
            (tmp_path / "go").touch()
            assert deployment.wait_ended(sender)["exitCode"] == 0
        finally:
            deployment.stop()


@pytest.mark.usefixtures("many_open_files")
def test_a_worker_with_many_open_files_listens(tmp_path):
    def listen():
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        settings = Settings(home=tmp_path, statsd={"port": port})
        backend = SimpleNamespace(metric_sockets=lambda: None)
        context = SimpleNamespace(
            settings=settings, enabled_backends=["process"], scratch_root=tmp_path, backend=lambda _: backend
        )
        listener = Listener(context)
        listener._tick()
        (bound,) = listener._sockets
        return bound.socket and bound  # another process may have taken the port meanwhile

    bound = wait_until(listen, "a free port")
    assert bound.socket.fileno() > 1023
    bound.close()
