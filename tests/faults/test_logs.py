"""Jobs that print what no job should, and readers that come and go: the log is what was printed, byte by byte."""

import hashlib
import socket
import time

import psutil
import pytest
from support.deployment import wait_until
from support.faults.fault_report import FULL_RUN, fault_trial, tries
from support.faults.job_journal import gate_command, recorded_command

pytestmark = [pytest.mark.faults, pytest.mark.timeout(3600 if FULL_RUN else 300)]

MIB = 1024**2
NEIGHBOUR_SECONDS = 30.0
"""Time limit for a short job beside a loud one, on a machine that is busy with other tests."""
MORE_MIB = 200
"""Memory that a process may grow by while it forwards a loud job's output."""
# Prints to its output and into a digest at once: it is too loud to keep a copy.
TORTURE = """
import hashlib, os, sys
digest, size = hashlib.sha256(), 0
def put(data):
    global size
    digest.update(data)
    size += len(data)
    sys.stdout.buffer.write(data)
odd = b"\\0\\0\\xff\\xfe\\xc3\\x28\\x1b[31mred\\x1b]0;title\\x07\\x9b2J\\r\\n\\r\\r\\n\\xe2\\x80\\xae\\n"
WAYS = {
    "line": lambda number: b"x" * 2**20,
    "random": lambda number: os.urandom(2**20).replace(b"\\x1b", b"."),
    "many": lambda number: b"line %d\\n" % number,
    "odd": lambda number: odd,
    "bars": lambda number: b"\\r[%s] %d%%" % (b"#" * (number % 50), number % 100),
}
for way in sys.argv[2:]:
    how, _, amount = way.partition("=")
    for number in range(int(amount)):
        put(WAYS[how](number))
    if how in ("line", "random", "bars"):
        put(b"\\n")
sys.stdout.flush()
with open(sys.argv[1] + ".digest", "w") as file:
    file.write(f"{digest.hexdigest()} {size}")
"""
LOUD = {
    "line": tries(10, 100),
    "random": tries(5, 1000),
    "many": tries(100_000, 1_000_000),
    "odd": tries(10_000, 1_000_000),
    "bars": tries(20_000, 1_000_000),
}


def test_a_loud_job_is_stored_byte_by_byte_and_disturbs_nobody(deployment):
    deployment.start_api()
    worker = deployment.start_worker(GRADIENT_WORKER__SLOTS="2", GRADIENT_LOGS__MAX_BYTES=str(2048 * MIB))
    (deployment.datasets / "torture.py").write_text(TORTURE)
    wait_until(lambda: "is ready" in worker.read_log(), "the worker")
    before = psutil.Process(worker.pid).memory_info().rss
    peak = before
    with fault_trial("F22", deployment, seconds=600) as one:
        ways = " ".join(f"{how}={amount}" for how, amount in LOUD.items())
        command = f'python "$GRADIENT_STORAGE_DIR/datasets/torture.py" "$truth" {ways}'
        job_id = deployment.submit(recorded_command(command, 2))
        while deployment.job(job_id)["finishedAt"] is None:
            peak = max(peak, psutil.Process(worker.pid).memory_info().rss)
            began = time.monotonic()
            quiet = deployment.submit(recorded_command("say quiet"))
            deployment.wait_ended(quiet, 120)
            assert deployment.raw_log(quiet) == b"quiet\n"
            assert time.monotonic() - began < NEIGHBOUR_SECONDS
        one.mark_lifted()
        assert deployment.wait_ended(job_id)["exitCode"] == 2
    assert peak - before < MORE_MIB * MIB


def test_many_slow_readers_hold_up_nobody(deployment):
    api = deployment.start_api()
    deployment.start_worker()
    readers = tries(10, 200)
    (deployment.datasets / "torture.py").write_text(TORTURE)
    with fault_trial("F23", deployment, seconds=300) as one:
        command = f'python "$GRADIENT_STORAGE_DIR/datasets/torture.py" "$truth" many=200000; {gate_command()}'
        job_id = deployment.submit(recorded_command(command))
        wait_until(lambda: len(deployment.raw_log(job_id)) > MIB, "output")
        before = psutil.Process(api.pid).memory_info().rss
        sockets = [slow_reader(deployment, job_id) for _ in range(readers)]
        for _ in range(10):
            began = time.monotonic()
            deployment.job(job_id)
            assert time.monotonic() - began < NEIGHBOUR_SECONDS
        assert deployment.wait_ended(deployment.submit(recorded_command()))["state"] == "Stopped"
        grown = psutil.Process(api.pid).memory_info().rss - before
        for reader in sockets:
            reader.close()
        one.mark_lifted()
        deployment.open_gate()
        raw = wait_until(lambda: deployment.job(job_id)["finishedAt"] and deployment.raw_log(job_id), "it to end")
        expected = b"".join(b"line %d\n" % number for number in range(200_000))
        assert hashlib.sha256(raw).digest() == hashlib.sha256(expected).digest()
    assert grown < MORE_MIB * MIB


def slow_reader(deployment, job_id):
    """Asks for the log as it comes, and then does not read it."""
    where = deployment.cli_json
    host, _, port = where["url"].removeprefix("http://").partition(":")
    reader = socket.create_connection((host, int(port)))
    reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    request = f"GET /jobs/{job_id}/logs HTTP/1.1\r\nHost: {host}:{port}\r\nAccept: text/event-stream\r\n"
    reader.sendall(f"{request}X-Api-Key: {where['apiKey']}\r\n\r\n".encode())
    return reader
