"""Users in running jobs: commands, terminals and ports, through the real client, service and worker."""

import fcntl
import os
import pty
import re
import shutil
import signal
import socket
import struct
import subprocess
import termios
import time
from contextlib import ExitStack, suppress
from pathlib import Path

import httpx
import psutil
import pytest
from support.deployment import CLI_PROGRAM, ORDINARY, TIMEOUT_SECONDS, Deployment, wait_until
from support.google.tpu_vm_deployment import cloud_settings
from support.servers.private_docker_engine import SHELL_IMAGE, build_layer, list_busybox_commands, read_busybox

from core.jobs.exec import audit
from core.system.processes import read_environment, running_processes

ECHO = """
import socketserver, sys
class Echo(socketserver.StreamRequestHandler):
    def handle(self):
        while line := self.rfile.readline():
            self.wfile.write(b"echo " + line)
server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Echo)
print("port", server.server_address[1], flush=True)
server.serve_forever()
"""
PLAIN, SANDBOX, ORDINARY_USER, CONTAINER, VM = "plain", "sandbox", "ordinary user", "docker", "TPU VM"


@pytest.fixture(
    scope="module",
    params=[SANDBOX, CONTAINER, VM, *(pytest.param(other, marks=pytest.mark.slow) for other in (PLAIN, ORDINARY_USER))],
)
def kind(request):
    return request.param


@pytest.fixture(scope="module")
def service(kind, request, tmp_path_factory):
    if kind == VM:
        storage, simulator = request.getfixturevalue("storage"), request.getfixturevalue("simulator")
        settings = cloud_settings(simulator, storage)
    elif kind == CONTAINER:
        server = request.getfixturevalue("docker_server")
        settings = server.service_settings
    else:
        settings = {"GRADIENT_PROCESS__SANDBOX": "off" if kind == PLAIN else "require"}
        if kind != PLAIN:
            request.getfixturevalue("bubblewrap")
    deployment = Deployment(tmp_path_factory.mktemp("service") / "home", **settings)
    deployment.start_api()
    deployment.start_worker(inside=ORDINARY if kind == ORDINARY_USER else ())
    yield deployment
    deployment.stop()
    if kind == CONTAINER:
        with server.client() as client:
            for container in client.containers(all=True):
                client.remove_container(container["Id"], force=True)


def start_job(service, kind, command="echo up; exec sleep 600", **spec):
    if kind == CONTAINER:
        spec.setdefault("container", SHELL_IMAGE)
    if kind == VM:
        spec["machineType"] = "TPU"
    job_id = service.submit(command, **spec)
    wait_until(lambda: service.raw_log(job_id), "its first line")
    wait_until(lambda: service.job(job_id)["state"] == "Running", "the job to run")
    return job_id


@pytest.fixture(scope="module")
def job_id(service, kind):
    return start_job(service, kind, "echo up; while :; do sleep 0.1; done", envVars={"SECRET": "s3cret"})


def environment(service):
    env = {k: v for k, v in os.environ.items() if not k.startswith("GRADIENT_")}
    return env | {"GRADIENT_HOME": str(service.home)}


def cli(service, *words, **options):
    command = [str(CLI_PROGRAM), "jobs", *words]
    given = {} if "stdin" in options else {"input": options.pop("input", b"")}
    return subprocess.run(
        command, env=environment(service), capture_output=True, check=False, timeout=TIMEOUT_SECONDS, **given, **options
    )


@pytest.fixture
def start_cli():
    """Start the client, and end it with the test."""
    with ExitStack() as stack:

        def start(service, *words, **options):
            options = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options
            command = [str(CLI_PROGRAM), "jobs", *words]
            client = stack.enter_context(subprocess.Popen(command, env=environment(service), **options))
            stack.callback(client.kill)
            return client

        yield start


def sessions(service, job_id):
    found = service.events(job_id)
    return [(one["kind"], one["message"]) for one in found if one["kind"] in {audit.OPENED, audit.CLOSED}]


def find_processes(job_id, word=""):
    """Find the job's processes with this word in their command, wherever they are, by their environment."""
    found = []
    for process in running_processes():
        with suppress(psutil.Error):
            if read_environment(process.pid, "GRADIENT_JOB_ID").get("GRADIENT_JOB_ID") == job_id:
                found += [process] if word in " ".join(process.cmdline()) else []
    return found


def test_a_command_has_no_other_descriptor(service, job_id):
    """A descriptor of a folder of the host leads out of the sandbox."""
    program = 'for one in /proc/$$/fd/*; do [ ! -e "$one" ] || echo "${one##*/}"; done'
    done = cli(service, "exec", job_id, "--", "sh", "-c", program)
    assert done.stdout.split() == [b"0", b"1", b"2"]


def test_a_command_has_the_jobs_environment_and_its_own_streams(service, kind, job_id):
    program = 'echo "$SECRET $GRADIENT_JOB_ID"; pwd; id -u; cat; echo bad >&2; exit 7'
    done = cli(service, "exec", job_id, "--", "sh", "-c", program, input=b"typed\n")
    job = cli(service, "exec", job_id, "--", "sh", "-c", 'echo "$GRADIENT_WORKSPACE_DIR"; stat -c %u .')
    folder, owner = job.stdout.decode().split()
    assert done.stdout.decode().splitlines() == [f"s3cret {job_id}", folder, owner, "typed"], done.stderr
    assert (done.stderr, done.returncode) == (b"bad\n", 7)
    assert kind in {PLAIN, ORDINARY_USER, VM} or os.geteuid() != 0 or int(owner) > 0, "not root, though the worker is"
    assert cli(service, "exec", job_id, "--", "no-such-program").returncode == 127


def test_a_session_is_recorded_with_its_key_its_command_and_its_end(service, job_id):
    assert cli(service, "exec", job_id, "--", "sh", "-c", "exit 5").returncode == 5
    assert cli(service, "exec", job_id, "sh", "-c", 'exit "$1"', "--url", "6", "--").returncode == 6
    assert cli(service, "exec", "--url", service.cli_json["url"], job_id, "echo", "-t").stdout == b"-t\n"

    def both_events():
        found = [one for one in sessions(service, job_id) if "exit 5" in one[1]]
        return found if len(found) == 2 else None

    (opened, what), (closed, result) = wait_until(both_events, "the events")
    key_id = service.cli_json["apiKey"].split("_")[1]
    assert (opened, closed) == (audit.OPENED, audit.CLOSED)
    assert "command sh -c 'exit 5', by API key" in what
    assert key_id in what
    assert result.startswith(what)
    assert ": exit code 5, after " in result


def test_a_terminal_has_a_size_and_passes_keys_on(service, job_id, start_cli):
    ours, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 41, 123, 0, 0))
    program = "stty size; trap 'echo caught; exit 9' INT; echo ready; while :; do sleep 0.1; done"
    client = start_cli(service, "exec", "-t", job_id, "--", "sh", "-c", program, stdin=its, stdout=its, stderr=its)
    os.close(its)
    shown = b""
    while b"ready" not in shown:
        shown += os.read(ours, 1000)
    assert b"41 123" in shown
    os.write(ours, b"\x03")
    while b"caught" not in shown:
        shown += os.read(ours, 1000)
    assert client.wait(TIMEOUT_SECONDS) == 9
    os.close(ours)


def test_a_shell_runs_what_it_is_given(service, job_id):
    done = cli(service, "ssh", job_id, input=b"echo in $GRADIENT_JOB_ID\nexit 3\n")
    assert (done.stdout.decode(), done.returncode) == (f"in {job_id}\n", 3), done.stderr


def test_much_output_is_passed_on_as_fast_as_it_is_read(service, job_id, start_cli):
    client = start_cli(service, "exec", job_id, "--", "head", "-c", "20000000", "/dev/zero")
    assert client.stdout.read(1000) == bytes(1000)
    assert len(client.stdout.read()) == 19_999_000
    assert client.wait(TIMEOUT_SECONDS) == 0


def test_megabytes_go_both_ways_though_the_output_is_read_late(service, job_id, start_cli, tmp_path):
    (tmp_path / "sent").write_bytes(os.urandom(20_000_000))
    with (tmp_path / "sent").open("rb") as sent:
        client = start_cli(service, "exec", job_id, "--", "cat", stdin=sent, stderr=None)
        before = -1
        while (now := sent.tell()) > before or not now:  # until the client waits
            before = now
            time.sleep(1)
        assert client.stdout.read() == (tmp_path / "sent").read_bytes()
        assert client.wait() == 0


def test_ctrl_c_reaches_the_command(service, job_id, start_cli):
    program = "trap 'echo caught; exit 9' INT; echo ready; while :; do sleep 0.1; done"
    client = start_cli(service, "exec", job_id, "--", "sh", "-c", program)
    assert client.stdout.readline() == b"ready\n"
    client.send_signal(signal.SIGINT)
    assert (client.stdout.read(), client.wait(TIMEOUT_SECONDS)) == (b"caught\n", 9)


def test_a_client_that_dies_takes_its_command_along(service, job_id, start_cli):
    client = start_cli(
        service, "exec", job_id, "--", "sh", "-c", "trap '' HUP; echo ready; while :; do sleep 0.1; done"
    )
    assert client.stdout.readline() == b"ready\n"
    before = len(sessions(service, job_id))
    assert find_processes(job_id, "trap '' HUP; echo ready")
    client.kill()
    client.wait()
    wait_until(lambda: not find_processes(job_id, "trap '' HUP; echo ready"), "the command to end")
    wait_until(lambda: len(sessions(service, job_id)) > before, "the event")
    assert "the client disconnected" in sessions(service, job_id)[-1][1]


def forwarded(client):
    """Return the address that `port-forward` prints."""
    url = httpx.URL(client.stdout.readline().split()[0].decode())
    return url.host, url.port


@pytest.fixture
def job_that_answers(service, kind, request):
    """A job with a port whose program answers each line."""
    if kind != CONTAINER:
        return start_job(service, kind, f"python3 -c '{ECHO}'")
    linked = subprocess.run(["ldd", shutil.which("bash")], capture_output=True, text=True, check=True).stdout
    files = {library.lstrip("/"): Path(library).read_bytes() for library in re.findall(r"/\S+", linked)}
    files |= {"bin/busybox": read_busybox(), "bin/bash": Path(shutil.which("bash")).read_bytes(), "tmp/": None}
    with request.getfixturevalue("docker_server").client() as client:
        layer = build_layer(files, links=list_busybox_commands())
        client.import_image_from_data(layer, repository="gradient-test", tag="bash", changes=["ENV PATH=/bin"])
    answer = '#!/bin/sh\nwhile read line; do echo "echo $line"; done'
    command = f"echo '{answer}' >answer; chmod +x answer; echo port 8000; exec nc -ll -p 8000 -e ./answer"
    return start_job(service, kind, command, container="gradient-test:bash")


def test_a_port_of_the_job_is_reached_through_the_service(service, job_that_answers, start_cli):
    job_id = job_that_answers
    port = service.raw_log(job_id).split()[1].decode()
    client = start_cli(service, "port-forward", job_id, f"{port}:0")
    local = forwarded(client)
    with socket.create_connection(local, TIMEOUT_SECONDS) as connection, connection.makefile("rwb") as lines:
        for word in (b"one\n", b"two\n"):
            lines.write(word)
            lines.flush()
            assert lines.readline() == b"echo " + word
    service.request("POST", f"/jobs/{job_id}/stop")
    assert (client.wait(TIMEOUT_SECONDS), client.stderr.read()) == (1, b"error: The job is being stopped.\n")
    assert f"connections to port {port}" in sessions(service, job_id)[-1][1]


def test_a_port_that_is_not_the_jobs_own_is_refused(service, kind, job_id, start_cli):
    if kind == VM:
        pytest.skip("all ports of a TPU VM are its job's")
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        client = start_cli(service, "port-forward", job_id, f"{port}:0")
        local = forwarded(client)
        with socket.create_connection(local, TIMEOUT_SECONDS) as connection:
            assert connection.recv(1) == b""
        client.send_signal(signal.SIGINT)
        assert client.wait(TIMEOUT_SECONDS) == 0
        refusal = b"The image has neither" if kind == CONTAINER else b"Nothing in the job listens on port %d" % port
        assert refusal in client.stderr.read()


@pytest.mark.parametrize("how", ["stop", "end"])
def test_sessions_end_with_the_job_and_do_not_delay_it(service, kind, how, start_cli):
    job_id = start_job(service, kind, "echo up; while [ ! -e over ]; do sleep 0.05; done", stopGrace=3000)
    client = start_cli(
        service, "exec", job_id, "--", "sh", "-c", "trap '' HUP TERM; echo ready; while :; do sleep 1; done"
    )
    assert client.stdout.readline() == b"ready\n"
    if how == "stop":
        service.request("POST", f"/jobs/{job_id}/stop")
    else:
        assert cli(service, "exec", job_id, "--", "touch", "over").returncode in {0, 1}
    assert client.wait(TIMEOUT_SECONDS) == 1
    text = b"The job is being stopped." if how == "stop" else b"The job has ended."
    assert client.stderr.read() == b"error: " + text + b"\n"
    assert service.wait_ended(job_id)["state"] == ("Cancelled" if how == "stop" else "Stopped")
    wait_until(lambda: not find_processes(job_id), "all of its processes to end")
    done = cli(service, "exec", job_id, "--", "true")
    assert done.returncode == 4
    assert b"Only a running job can be entered" in done.stderr


def test_what_runs_in_a_session_counts_towards_the_jobs_limits(service, kind):
    if kind in {CONTAINER, VM}:
        pytest.skip("its memory is limited by the engine's cgroup, or it has a machine of its own")
    job_id = start_job(service, kind, memoryMb=200)
    done = cli(service, "exec", job_id, "--", "python3", "-c", "x = b'x' * 400_000_000; import time; time.sleep(60)")
    assert done.returncode != 0
    assert service.wait_ended(job_id)["reason"] == "out_of_memory"


def test_a_session_survives_no_restart_of_the_worker_but_the_job_does(kind, deployment, start_cli):
    if kind in {CONTAINER, VM}:
        pytest.skip("the same for every backend")
    settings = {"GRADIENT_PROCESS__SANDBOX": "off" if kind == PLAIN else "require"}
    deployment.start_api(**settings)
    worker = deployment.start_worker(**settings)
    job_id = start_job(deployment, kind)
    client = start_cli(deployment, "exec", job_id, "--", "sh", "-c", "echo ready; sleep 600")
    assert client.stdout.readline() == b"ready\n"
    worker.kill()
    assert client.wait(TIMEOUT_SECONDS) == 1
    assert b"The connection to the job's worker was lost" in client.stderr.read()
    deployment.start_worker(**settings)
    wait_until(lambda: cli(deployment, "exec", job_id, "--", "true").returncode == 0, "the next worker to take it over")
