"""Users in jobs on TPU VMs: where `tests/e2e/test_exec.py`, which runs on a simulated one, does not suffice."""

import fcntl
import itertools
import json
import os
import pty
import select
import shutil
import signal
import socket
import struct
import subprocess
import termios
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import pytest
from support.deployment import CLI_PROGRAM, EMPTY_SSL_CONTEXT, TIMEOUT_SECONDS, wait_until
from support.google.tpu_vm_deployment import container_settings, container_vms, find_runner, nothing_left, served
from support.servers.private_docker_engine import SHELL_IMAGE

PIPES = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}


@contextmanager
def started(service, *words, **streams):
    env = {k: v for k, v in os.environ.items() if not k.startswith("GRADIENT_")} | {"GRADIENT_HOME": str(service.home)}
    with subprocess.Popen([str(CLI_PROGRAM), *words], env=env, **(PIPES | streams)) as client:
        try:
            yield client
        finally:
            client.kill()


def run(service, job_id, *command, given=b""):
    with started(service, "jobs", "exec", job_id, "--", *command) as client:
        out, err = client.communicate(given, TIMEOUT_SECONDS)
    return client.returncode, out, err


def start_job(service, command="echo up; exec sleep 600", **spec):
    job_id = service.submit(command, **{"machineType": "TPU"} | spec)
    wait_until(lambda: service.raw_log(job_id), "its first line")
    return job_id


@pytest.mark.skipif(shutil.which("docker") is None, reason="the client of the engine is not installed")
def test_a_container_on_a_vm_is_entered(docker_server, storage, tmp_path):
    with (
        container_vms(storage, docker_server, tmp_path) as simulator,
        served(simulator, storage, tmp_path, **container_settings(docker_server)) as service,
        docker_server.client() as engine,
    ):
        command = "echo up; while [ ! -e over ]; do sleep 0.1; done"
        job_id = start_job(service, command, container=SHELL_IMAGE, envVars={"SECRET": "s3cret"})
        program = 'echo "$SECRET in $PWD"; cat; echo bad >&2; exit 7'
        assert run(service, job_id, "sh", "-c", program, given=b"typed\n") == (
            7,
            b"s3cret in /paperspace\ntyped\n",
            b"bad\n",
        )
        assert run(service, job_id, "no-such-program")[0] == 127
        megabytes = os.urandom(5_000_000)
        assert run(service, job_id, "cat", given=megabytes) == (0, megabytes, b"")
        assert b"sessions" not in run(service, job_id, "sh", "-c", "env; ls /.gradient")[1]
        resize_and_interrupt(service, job_id)

        wait = "echo ready; while :; do sleep 0.1; done"
        with started(service, "jobs", "exec", job_id, "--", "sh", "-c", f"trap 'exit 9' INT; {wait}") as client:
            assert client.stdout.readline() == b"ready\n"
            client.send_signal(signal.SIGINT)
            assert client.wait(TIMEOUT_SECONDS) == 9
        with started(service, "jobs", "exec", job_id, "--", "sh", "-c", f"trap '' HUP; {wait}") as client:
            assert client.stdout.readline() == b"ready\n"
        wait_until(lambda: b"trap '' HUP" not in listed(engine), "the command of a client that is gone to end")

        with started(service, "jobs", "exec", job_id, "--", "sh", "-c", f"trap '' HUP TERM; {wait}") as client:
            assert client.stdout.readline() == b"ready\n"
            run(service, job_id, "touch", "over")
            assert client.wait(TIMEOUT_SECONDS) == 1
            assert client.stderr.read() == b"error: The job has ended.\n"
        assert service.wait_ended(job_id)["state"] == "Stopped"
        engine.remove_container("gradient-job", force=True)
        assert nothing_left(simulator, storage)


def listed(engine):
    return json.dumps(engine.top("gradient-job")).encode()


def resize_and_interrupt(service, job_id):
    ours, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 41, 123, 0, 0))
    program = "stty size; trap 'stty size' WINCH; trap 'exit 9' INT; echo ready; while :; do sleep 0.1; done"
    streams = dict.fromkeys(PIPES, its)
    with started(service, "jobs", "exec", "-t", job_id, "--", "sh", "-c", program, **streams) as client:
        shown = read_until(ours, b"ready")
        assert b"41 123" in shown
        # The engine's client passes on no change while it sets the first size.
        for rows in itertools.count(42):
            fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", rows, 90, 0, 0))
            client.send_signal(signal.SIGWINCH)
            if select.select([ours], [], [], 2)[0] and b" 90" in os.read(ours, 1000):
                break
        os.write(ours, b"\x03")
        assert client.wait(TIMEOUT_SECONDS) == 9
    os.close(its)
    os.close(ours)


def read_until(terminal, text):
    shown = b""
    while text not in shown:
        shown += os.read(terminal, 1000)
    return shown


@pytest.mark.faults
def test_a_runner_or_a_worker_that_was_restarted_lets_users_in_again(service, simulator, storage):
    job_id = start_job(service)
    with started(service, "jobs", "exec", job_id, "--", "sh", "-c", "echo ready; sleep 600") as client:
        assert client.stdout.readline() == b"ready\n"
        runner = find_runner(job_id)
        port = Path(runner.cwd(), "session_port").read_text()
        runner.kill()
        assert client.wait(TIMEOUT_SECONDS) == 1
        assert client.stderr.read() == b"error: The connection to the job's machine was lost.\n"
    wait_until(lambda: run(service, job_id, "true")[0] == 0, "the next runner")
    assert Path(find_runner(job_id).cwd(), "session_port").read_text() == port
    service.processes[-1].kill()
    service.start_up()
    wait_until(lambda: run(service, job_id, "true")[0] == 0, "the next worker")
    service.request("POST", f"/jobs/{job_id}/stop")
    assert service.wait_ended(job_id)["state"] == "Cancelled"
    assert nothing_left(simulator, storage)


def test_the_jobs_environment_has_nothing_that_lets_others_in(service, simulator, storage):
    job_id = start_job(service)
    folder = Path(find_runner(job_id).cwd())
    token = json.loads((folder / "job.json").read_text())["sessions"]["token"]
    assert len(token) == 64
    assert token.encode() not in run(service, job_id, "env")[1]
    assert (folder / "job.json").stat().st_mode & 0o077 == 0
    service.request("POST", f"/jobs/{job_id}/stop")
    service.wait_ended(job_id)
    assert nothing_left(simulator, storage)


def test_on_a_slice_host_0_is_entered(service, simulator, storage):
    job_id = start_job(service, machineType="TPU v5e-16")
    assert run(service, job_id, "sh", "-c", "echo $TPU_WORKER_ID") == (0, b"0\n", b"")
    service.request("POST", f"/jobs/{job_id}/stop")
    assert service.wait_ended(job_id)["state"] == "Cancelled"
    assert nothing_left(simulator, storage)


# In place of the real one, which takes a minute to install.
JUPYTERLAB = """
import http.server, os, sys

class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path.endswith(f"?token={os.environ['JUPYTER_TOKEN']}") else 403)
        self.end_headers()

if __name__ == "__main__":
    options = dict(word.partition("=")[::2] for word in sys.argv[1:])
    http.server.HTTPServer((options["--ip"], int(options["--port"])), Answer).serve_forever()
"""


def test_a_notebook_opens_on_a_vm(service, simulator, storage, tmp_path):
    with suppress(OSError), socket.create_connection(("127.0.0.1", 8888), 1):
        pytest.skip("another program has the port that the notebook has on its VM")
    (tmp_path / "jupyterlab.py").write_text(JUPYTERLAB)
    options = ("notebooks", "run", "-m", "TPU", "--localPort", "0")
    with started(service, *options, cwd=tmp_path) as client:
        link = client.stdout.readline().decode().strip()
        assert link, client.stderr.read()
        with httpx.Client(verify=EMPTY_SSL_CONTEXT) as browser:
            assert (browser.get(link).status_code, browser.get(link[:-1]).status_code) == (200, 403)
        client.send_signal(signal.SIGINT)
        assert client.wait(TIMEOUT_SECONDS) == 0
    [job] = [job for job in service.request("GET", "/jobs").json()["jobs"] if job["state"] == "Running"]
    service.request("POST", f"/jobs/{job['id']}/stop")
    service.wait_ended(job["id"])
    assert nothing_left(simulator, storage)
