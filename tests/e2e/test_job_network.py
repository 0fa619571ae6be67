"""The network of sandboxed jobs: what reaches into it, and what a job does not reach."""

import json
import signal
import socket
from functools import partial

import httpx
import psutil
import pytest
from support.deployment import ORDINARY, WITHOUT_TUN, wait_until
from support.servers.neighbour import PORT, neighbour

from worker.backends.process.network.linked_networks import LINK_PREFIX
from worker.backends.process.sandbox_processes import find_sandbox

BINDS = """
import os, socket, time
listener = socket.create_server(("127.0.0.1", 29500))
print("up", flush=True)
while not os.path.exists("/storage/" + os.environ["OTHER"]):
    time.sleep(0.05)
"""
# As PyTorch's `env://`, a store at one port to which each rank connects; beside it Jupyter and TensorBoard.
TRAINS = """
import http.server, os, socket, subprocess, sys, threading, time

class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(f"{os.environ['GRADIENT_JOB_ID']} {self.server.server_port}".encode())

for port in (8888, 6006):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Answer)
    threading.Thread(target=server.serve_forever, daemon=True).start()
store = socket.create_server((os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])))
rank = "import os, socket; "
rank += "s = socket.create_connection((os.environ['MASTER_ADDR'], int(os.environ['MASTER_PORT']))); "
rank += "s.sendall(os.environ['GRADIENT_JOB_ID'].encode())"
ranks = [subprocess.Popen([sys.executable, "-c", rank]) for _ in range(2)]
for _ in ranks:
    with store.accept()[0] as connection, connection.makefile() as words:
        assert words.read() == os.environ["GRADIENT_JOB_ID"]
assert [one.wait() for one in ranks] == [0, 0]
print("up", flush=True)
while not os.path.exists("/storage/" + os.environ["OTHER"]):
    time.sleep(0.05)
"""
NODE = """
import os, socket, time

address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
if os.environ["RANK"] == "0":
    connection = socket.create_server(address).accept()[0]
    assert connection.recv(5) == b"hello"
else:
    while True:
        try:
            connection = socket.create_connection(address)
            break
        except ConnectionRefusedError:
            time.sleep(0.05)
    connection.sendall(b"hello")
"""
PROBE = """
import json, os, socket, sys, time

def reached(address):
    try:
        socket.create_connection(address, 20).close()
    except OSError:
        return False
    return True

print("FOUND" + json.dumps([address for address in json.loads(sys.argv[1]) if reached(address)]))
"""
SENDS = """
import os, pathlib, socket, time
sample = f"loss:7|g|#container_name:{os.environ['PS_JOB_ID']}".encode()
socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(sample, ("127.0.0.1", 8125))
metrics = pathlib.Path(os.environ["GRADIENT_METRICS_FILE"])
while not metrics.exists() or '"loss": 7' not in metrics.read_text():
    time.sleep(0.05)
"""
SERVES = "echo hello >index.html; echo up; exec python3 -m http.server --bind 127.0.0.1 $GRADIENT_PORT_8000"

pytestmark = [pytest.mark.usefixtures("bubblewrap")]


@pytest.fixture(params=["linked", pytest.param("relayed", marks=pytest.mark.slow)])
def inside(request):
    """Words before a worker that is root, and before one that is not."""
    return {"linked": (), "relayed": ORDINARY}[request.param]


@pytest.fixture
def service(deployment, inside):
    deployment.start_api()
    start_worker(deployment, inside)
    return deployment


WORKER = {"SLOTS": "4", "LEASE_SECONDS": "2", "SWEEP_SECONDS": "0.5"}


def start_worker(deployment, inside, name="w1", network="require", **settings):
    settings |= {f"GRADIENT_WORKER__{name}": value for name, value in WORKER.items()}
    sandbox = {"GRADIENT_PROCESS__SANDBOX": "require", "GRADIENT_PROCESS__NETWORK": network}
    return deployment.start_worker(name, inside=inside, **sandbox, **settings)


def python(program, *arguments):
    words = " ".join(f"'{one}'" for one in arguments)
    return f"python - {words} <<'END'\n{program}\nEND\n"


def is_up(service, job_id):
    wait_until(lambda: b"up" in service.raw_log(job_id), "the job to run")


def found(service, job_id):
    ended = service.wait_ended(job_id)
    log = service.raw_log(job_id).decode()
    assert ended["exitCode"] == 0, log
    return json.loads(log.partition("FOUND")[2])


def fetched(url):
    try:
        return httpx.get(url, timeout=5).content
    except httpx.TransportError:
        return None


def test_two_trainings_with_their_notebooks_and_boards_run_at_once(service):
    submit = partial(service.submit, python(TRAINS), ports=["8888", "6006"])
    jobs = [submit(envVars={"OTHER": f"trained{number}"}) for number in range(2)]
    for job in jobs:
        is_up(service, job)
    for job in jobs:
        for port in service.job(job)["ports"]:
            answer = f"{job} {port['internal']}".encode()
            wait_until(lambda port=port, answer=answer: fetched(port["url"]) == answer, "the answer of this job")
    over = service.submit("touch /storage/trained0 /storage/trained1")
    assert [service.wait_ended(job)["exitCode"] for job in (over, *jobs)] == [0, 0, 0]


@pytest.mark.parametrize("inside", ["linked", "relayed"], indirect=True)
@pytest.mark.parametrize("network", ["require", pytest.param("off", marks=pytest.mark.slow)])
def test_a_job_reaches_neither_this_host_nor_other_jobs(deployment, inside, network):
    deployment.start_api()
    start_worker(deployment, inside, network=network)
    other = deployment.submit("echo up; hostname -I; exec python3 -m http.server 8000", ports="8000")
    is_up(deployment, other)
    service = (httpx.URL(deployment.cli_json["url"]).host, httpx.URL(deployment.cli_json["url"]).port)
    with socket.create_server(("0.0.0.0", 0)) as here:  # noqa: S104 - the point of the test
        port = here.getsockname()[1]
        # Those of other jobs' links come and go.
        links = [found for name, found in psutil.net_if_addrs().items() if not name.startswith(LINK_PREFIX)]
        addresses = [one.address for found in links for one in found if one.family == socket.AF_INET]
        own = [[address, port] for address in ("127.0.0.1", "127.0.0.2", *addresses)]
        linked = [[line, 8000] for line in deployment.raw_log(other).decode().split() if line.startswith("198.19.")]
        wanted = [service, *own, *linked, ["127.0.0.1", 8000], ["169.254.169.254", 80]]
        reached = found(deployment, deployment.submit(python(PROBE, json.dumps(wanted))))
    if network == "off":
        assert list(service) in reached
        assert all(address in reached for address in own)
    elif inside:  # its own copy of this host's address is its own
        assert reached == []
    else:
        assert (reached, len(linked)) == ([], 1)
    events = str(deployment.events(other))
    page = deployment.request("GET", f"/ui/jobs/{other}").text
    assert ("in the server's network" in events) == (network == "off")
    assert ("No separate network" in page) == (network == "off")
    assert "localhost" not in events + page


def test_where_no_network_can_be_made_one_keys_jobs_have_the_hosts_and_those_of_several_localhost_alone(deployment):
    deployment.start_api()
    worker = start_worker(deployment, WITHOUT_TUN, network="auto")
    service = [httpx.URL(deployment.cli_json["url"]).host, httpx.URL(deployment.cli_json["url"]).port]
    assert found(deployment, deployment.submit(python(PROBE, json.dumps([service])))) == [service]
    assert deployment.start("keys", "create", "bob").wait() == 0
    job = deployment.submit(python(PROBE, json.dumps([service])))
    assert found(deployment, job) == []
    assert "in a network of localhost alone" in str(deployment.events(job))
    served = deployment.submit(SERVES, ports="8000")
    is_up(deployment, served)
    assert "No network but localhost" in deployment.request("GET", f"/ui/jobs/{served}").text
    (port,) = deployment.job(served)["ports"]
    wait_until(lambda: fetched(port["url"]) == b"hello\n", "its answer")
    metrics = deployment.submit(python(SENDS))
    assert deployment.wait_ended(metrics)["exitCode"] == 0
    worker.signal(signal.SIGTERM)
    worker.wait()
    start_worker(deployment, WITHOUT_TUN, "w2")
    refused = deployment.submit("true")
    wait_until(lambda: "GRADIENT_PROCESS__NETWORK=require" in str(deployment.request("GET", "/workers").json()), "why")
    assert deployment.job(refused)["state"] == "Pending"


@pytest.mark.parametrize("allowed", [False, True])
def test_private_addresses_are_closed_once_there_is_a_second_key(deployment, inside, allowed):
    with neighbour("10.213") as (address, _):
        words = [f"{address}/31"] if allowed else []
        deployment.start_api()
        worker = start_worker(deployment, inside, GRADIENT_EGRESS__ALLOWED=json.dumps(words))
        wanted = json.dumps([[address, PORT]])
        assert found(deployment, deployment.submit(python(PROBE, wanted))) == [[address, PORT]]
        assert deployment.start("keys", "create", "bob").wait() == 0
        worker.signal(signal.SIGTERM)  # else it may take a minute
        worker.wait()
        start_worker(deployment, inside, "w2", GRADIENT_EGRESS__ALLOWED=json.dumps(words))
        reached = found(deployment, deployment.submit(python(PROBE, wanted)))
        assert reached == ([[address, PORT]] if allowed else [])


def test_a_port_leads_into_it(service, inside):
    job = service.submit(SERVES, ports="8000")
    is_up(service, job)
    (port,) = service.job(job)["ports"]
    wait_until(lambda: fetched(port["url"]) == b"hello\n", "its answer")
    first = find_sandbox(job, 1)
    assert len(relays(first)) == (1 if inside == ORDINARY else 0)
    service.request("POST", f"/jobs/{job}/stop")
    service.wait_ended(job)
    wait_until(lambda: not relays(first) and fetched(port["url"]) is None, "nothing to be left of its network")


def relays(first):
    """Return the processes that end with a sandbox, by its first process."""
    words = (process.info["cmdline"] or [] for process in psutil.process_iter(["cmdline"]))
    return [line for line in words if line[:2] == ["tail", f"--pid={first}"]]


@pytest.mark.parametrize("inside", ["linked"], indirect=True)
def test_its_port_is_opened_again_by_the_next_worker(deployment, inside):
    """Only by one of the same user, which a second worker in a user namespace of its own is not."""
    deployment.start_api()
    worker = start_worker(deployment, inside)
    job = deployment.submit(SERVES, ports="8000")
    is_up(deployment, job)
    (port,) = deployment.job(job)["ports"]
    wait_until(lambda: fetched(port["url"]) == b"hello\n", "its answer")
    worker.kill()
    assert fetched(port["url"]) is None
    start_worker(deployment, inside, "w2")
    wait_until(lambda: fetched(port["url"]) == b"hello\n", "its answer again")


def test_a_job_may_go_without_the_network(service):
    program = f"import socket; print([name for _, name in socket.if_nameindex()])\n{BINDS}"
    job = service.submit(python(program), network="none", ports="29500", envVars={"OTHER": "over"})
    is_up(service, job)
    (port,) = service.job(job)["ports"]
    with socket.create_connection((httpx.URL(port["url"]).host, port["external"]), 20):
        service.submit("touch /storage/over")
    assert service.wait_ended(job)["exitCode"] == 0
    assert service.raw_log(job) == b"['lo']\nup\n"


@pytest.mark.parametrize("inside", ["relayed"], indirect=True)
def test_nodes_meet_in_one_network(service):
    job = service.submit(python(NODE), nodes=2)
    assert service.wait_ended(job)["state"] == "Stopped", service.job(job)["message"]


def test_metrics_that_a_job_sends_arrive(service):
    job = service.submit(python(SENDS))
    assert service.wait_ended(job)["exitCode"] == 0
