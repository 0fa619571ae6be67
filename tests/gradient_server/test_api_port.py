"""The API's port while the API restarts: nobody else gets it, and who connects meanwhile waits."""

import os
import signal
import subprocess
import sys
from contextlib import ExitStack

import httpx
import psutil
import pytest
from support.deployment import EMPTY_SSL_CONTEXT, SERVER_PROGRAM, TIMEOUT_SECONDS, wait_until
from support.free_port import free_port

pytestmark = pytest.mark.integration

# Takes the port as soon as it can, and prints the keys that it is sent.
THIEF = """
exec python3 - <<'END'
import os, socket, time
print("waits", flush=True)
while True:
    try:
        listener = socket.create_server(("127.0.0.1", int(os.environ["PORT"])))
    except OSError:
        time.sleep(0.001)
    else:
        break
print("taken", flush=True)
while True:
    connection, _ = listener.accept()
    print(connection.recv(10000), flush=True)
    connection.close()
END
"""
# As systemd starts a service whose socket it has open.
ACTIVATE = """
import os, socket, sys
opened = socket.create_server(("127.0.0.1", int(sys.argv[1])))
os.set_inheritable(os.dup2(opened.fileno(), 3), True)
while True:
    child = os.fork()
    if child == 0:
        os.environ |= {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "1"}
        os.execv(sys.argv[2], sys.argv[2:])
    print(child, flush=True)
    os.waitpid(child, 0)
"""


def answers(url):
    """Ask over a new connection; the seconds are those of a slow start."""
    with httpx.Client(timeout=TIMEOUT_SECONDS, verify=EMPTY_SSL_CONTEXT, trust_env=False) as client:
        return client.get(f"{url}/readiness").status_code == 200


def start_thief(deployment):
    port = deployment.cli_json["url"].rpartition(":")[2]
    job_id = deployment.submit(THIEF, envVars={"PORT": port}, stopGrace=0)
    wait_until(lambda: b"waits" in deployment.raw_log(job_id), "the job to wait for the port")
    return job_id


def test_a_job_does_not_get_the_port_while_up_starts_again(deployment):
    """Without a sandbox, in this host's network."""
    up = deployment.start_up()
    url = deployment.cli_json["url"]
    job_id = start_thief(deployment)
    [process] = psutil.Process(up.pid).children()
    process.kill()
    process.wait(TIMEOUT_SECONDS)
    assert answers(url), "the connection waited for the API"
    assert "is started again" in up.read_log()
    assert deployment.raw_log(job_id) == b"waits\n"
    assert deployment.wait_ended(deployment.submit("true"))["exitCode"] == 0, "its worker runs, too"
    up.signal(signal.SIGTERM)
    assert up.wait() == 0
    thief = wait_until(lambda: find_listener(url), "the job to get the port of a service that has ended")
    again = deployment.start("up", "--port", url.rpartition(":")[2])
    assert again.wait() == 1
    assert f"Address already in use by process {thief} (python3), of job {job_id}." in again.read_log()


def find_listener(url):
    port = httpx.URL(url).port
    found = [one for one in psutil.net_connections("tcp") if one.status == "LISTEN" and one.laddr.port == port]
    return found[0].pid if found else None


def test_a_service_has_the_socket_that_systemd_opened(deployment):
    deployment.migrate()
    port = free_port()
    words = [sys.executable, "-c", ACTIVATE, str(port), str(SERVER_PROGRAM), "api", "--port", "1"]
    with ExitStack() as stack:
        systemd = stack.enter_context(
            subprocess.Popen(words, env=deployment.environment(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        )
        stack.callback(systemd.kill)
        for _ in range(2):
            child = int(systemd.stdout.readline())
            stack.callback(end, child)
            wait_until((deployment.home / "cli.json").exists, "the file with the address")
            assert deployment.cli_json["url"] == f"http://127.0.0.1:{port}"
            assert answers(f"http://127.0.0.1:{port}")
            os.kill(child, signal.SIGKILL)


def end(pid):
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
