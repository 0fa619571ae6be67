"""Jobs of the process backend that send metrics, and a job that sends what it should not."""

import shlex
import signal
import socket
from types import SimpleNamespace

import psutil
import pytest
from support.deployment import Deployment, wait_until

from core.settings import Settings
from worker.backends.job_connections import JobConnections
from worker.statsd.listener import Listener

pytestmark = pytest.mark.integration

SEND = """
import os, socket, sys, time
link = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
link.connect(("127.0.0.1", int(os.environ["GRADIENT_STATSD_PORT"])))
job = sys.argv[1] if len(sys.argv) > 1 else os.environ["PS_JOB_ID"]
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
link.connect(("127.0.0.1", int(os.environ["GRADIENT_STATSD_PORT"])))
until = time.monotonic() + 1
while time.monotonic() < until:
    for junk in (b"\\xff" * 60000, b"a:b:c|d", b"x:1|g", b"y" * 5000 + b":1|c"):
        link.send(junk)
        link.send(f"n{time.monotonic_ns()}:1|g|#container_name:{os.environ['PS_JOB_ID']}".encode())
"""


@pytest.fixture(params=["sandbox", pytest.param("host", marks=pytest.mark.slow)])
def service(tmp_path, request):
    """A service whose jobs have networks of their own, or that of the host."""
    own = {"GRADIENT_PROCESS__SANDBOX": "auto"} if request.param == "sandbox" else {}
    deployment = Deployment(tmp_path / "home", **own)
    deployment.start_up()
    yield deployment
    deployment.stop()


def python(program, *arguments):
    return shlex.join(["python", "-c", program, *arguments])


def series(service, job):
    found = service.request("GET", f"/jobs/{job}/metrics").json()["series"]
    return {one["name"]: [point["value"] for point in one["points"]] for one in found if one["source"] == "job"}


def test_what_a_job_sends_becomes_its_metrics(service):
    job = service.submit(python(SEND_AND_SEE))
    assert service.wait_ended(job)["exitCode"] == 0
    assert series(service, job) == {"loss": [0.0, 1.0, 2.0, 3.0, 4.0]}


def test_a_job_cannot_write_into_another_s_metrics(service):
    victim = service.submit("sleep 300")
    wait_until(lambda: service.job(victim)["state"] == "Running", "the victim to run")
    forger = service.submit(python(FORGE_AND_SEE, victim))
    assert service.wait_ended(forger)["exitCode"] == 0
    assert series(service, forger)["statsd_dropped"][-1] == 5
    service.request("POST", f"/jobs/{victim}/stop")
    service.wait_ended(victim)
    assert series(service, victim) == {}


def test_a_flood_harms_nobody(service):
    [api] = service.processes
    before = psutil.Process(api.pid).memory_info().rss
    flooding = service.submit(python(FLOOD))
    other = service.submit(python(SEND))
    assert service.wait_ended(other)["exitCode"] == 0
    assert service.wait_ended(flooding)["exitCode"] == 0
    found = series(service, flooding)
    assert (len(found) <= 201, found["statsd_dropped"][-1] > 0) == (True, True)
    assert psutil.Process(api.pid).memory_info().rss - before < 200 * 1024**2
    last = service.submit(python(SEND_AND_SEE))
    service.wait_ended(last)
    assert series(service, last)["loss"][-1] == 4.0


SEND_UNTIL_SEEN_AGAIN = """
import os, socket, time
link = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
link.connect(("127.0.0.1", int(os.environ["GRADIENT_STATSD_PORT"])))
def rows():
    file = os.environ["GRADIENT_METRICS_FILE"]
    return len(open(file).readlines()) if os.path.exists(file) else 0
def send(value):
    try:
        link.send(f"loss:{value}|g|#container_name:{os.environ['PS_JOB_ID']}".encode())
    except ConnectionRefusedError:  # no worker runs
        time.sleep(0.05)
while rows() < 3:
    send(1)
    time.sleep(0.05)
print("seen", flush=True)
while not os.path.exists("go"):
    time.sleep(0.05)
before = rows()
while rows() < before + 3:
    send(2)
    time.sleep(0.05)
"""


def test_a_job_s_port_is_open_again_after_a_restart_of_the_worker(service):
    job = service.submit(f"touch $GRADIENT_ARTIFACTS_DIR/x; {python(SEND_UNTIL_SEEN_AGAIN)}")
    wait_until(lambda: b"seen" in service.raw_log(job), "the first values")
    [process] = service.processes
    process.signal(signal.SIGTERM)
    process.wait()
    service.start_up()
    [folder] = (service.home / "attempts").glob(f"{job}-*/workspace")
    (folder / "go").touch()
    assert service.wait_ended(job)["exitCode"] == 0
    assert series(service, job)["loss"][-1] == 2.0


@pytest.mark.usefixtures("many_open_files")
def test_a_worker_with_many_open_files_listens(tmp_path):
    connections = JobConnections(Settings(home=tmp_path), lambda _: None)
    control = tmp_path / "attempts" / "jone-1" / "control"
    control.mkdir(parents=True)
    backend = SimpleNamespace(metric_sockets=lambda: connections.metrics)
    context = SimpleNamespace(
        settings=Settings(home=tmp_path),
        enabled_backends=["process"],
        scratch_root=tmp_path / "attempts",
        backend=lambda _: backend,
    )
    port = int(connections.metrics_environment("jone-1", own_network=False)["GRADIENT_STATSD_PORT"])
    assert connections.metrics.fileno() > 1023
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as job:
        job.sendto(b"loss:1|g|#container_name:jone", ("127.0.0.1", port))
    Listener(context).tick()
    assert '"loss": 1' in (control / "metrics.jsonl").read_text()
    connections.metrics.remove("jone-1")
