"""A stored handle that somebody has changed, as another host may, or who writes to the database."""

import json
import socket
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager

import httpx
import psutil
import pytest
from support.deployment import CLI_PROGRAM, TIMEOUT_SECONDS, Deployment, wait_until

from worker.backends.process.sandbox_processes import find_sandbox

LISTENER = """
import socket
with socket.create_server(('127.0.0.1', {port})) as server:
    print('up', flush=True)
    while True:
        server.accept()[0].sendall(b'job')
"""


@pytest.fixture
def victim():
    """A process of the host."""
    process = subprocess.Popen(["sleep", "600"])
    yield process
    process.kill()
    process.wait()


def change(deployment: Deployment, job_id: str, other: str, **values: object) -> None:
    """Put that of another job in the place of a job's handle, with these values, while the worker is away."""
    with closing(sqlite3.connect(deployment.home / "gradient.db")) as database, database:
        [stored] = database.execute("SELECT handle FROM jobs WHERE id = ?", [other]).fetchone()
        handle = json.dumps(json.loads(stored) | values)
        database.execute("UPDATE jobs SET handle = ? WHERE id = ?", [handle, job_id])


def bubblewrap_of(job_id: str) -> int:
    """Return the process of a job's sandbox that is outside of it."""
    first = find_sandbox(job_id, 1)
    assert first is not None, "the job has no sandbox"
    return psutil.Process(first).ppid()


def is_running(deployment: Deployment, job_id: str) -> bool:
    return deployment.job(job_id)["state"] == "Running" and bool(deployment.raw_log(job_id))


@contextmanager
def forwarded(deployment: Deployment, job_id: str, port: int) -> Iterator[socket.socket]:
    words = [str(CLI_PROGRAM), "jobs", "port-forward", job_id, f"{port}:0"]
    with subprocess.Popen(words, env=deployment.client_environment(), stdout=subprocess.PIPE, text=True) as client:
        url = httpx.URL(client.stdout.readline().split()[0])
        with socket.create_connection((url.host, url.port), TIMEOUT_SECONDS) as connection:
            yield connection
        client.kill()


@pytest.mark.usefixtures("bubblewrap", "linked_networks")
def test_it_leads_to_nothing_but_the_job(deployment, tmp_path, victim):
    secret, kept = tmp_path / "secret", tmp_path / "kept"
    for file in (secret, kept):
        file.write_text("canary")
        file.chmod(0o600)
    with socket.create_server(("127.0.0.1", 0)) as of_host:
        port = of_host.getsockname()[1]
        deployment.start_api()
        worker = deployment.start_worker(GRADIENT_PROCESS__SANDBOX="require")
        job = deployment.submit("exec python main.py", files={"main.py": LISTENER.format(port=port)})
        other = deployment.submit("echo up; exec sleep 600")
        wait_until(lambda: all(is_running(deployment, name) for name in (job, other)), "them to run")
        worker.kill()
        group = tmp_path / f"gradient-{job}-1"
        group.mkdir()
        (group / "cgroup.procs").write_text(f"{victim.pid}\n")
        (group / "cgroup.kill").symlink_to(kept)
        folders = dict.fromkeys(("memory", "cpu", "usage", "kill"), str(group)) | {"processes": None}
        change(deployment, job, other, sandboxed=False, own_network=False, control_group={"version": 2} | folders)
        started = deployment.home / "attempts" / f"{job}-1" / "control" / "started"
        started.write_text(f"{bubblewrap_of(job)}\n")  # as the job itself can
        deployment.start_worker(GRADIENT_PROCESS__SANDBOX="require")
        wait_until(lambda: any(event["kind"] == "adopted" for event in deployment.events(job)), "it to be adopted")
        read = deployment.cli("jobs", "exec", job, "--", "cat", str(secret), code=None)
        assert (read.returncode, read.stdout) == (1, "")
        assert "No such file or directory" in read.stderr, "the command runs in the sandbox"
        with forwarded(deployment, job, port) as connection:
            assert connection.recv(9) == b"job"
    deployment.request("POST", f"/jobs/{job}/stop")
    assert deployment.wait_ended(job)["state"] == "Cancelled"
    wait_until(lambda: deployment.scratch() == [f"{other}-1"], "its folders to go")
    assert victim.poll() is None
    assert deployment.cli("jobs", "exec", other, "--", "echo", "alive").stdout == "alive\n"
    assert kept.read_text() == "canary"
