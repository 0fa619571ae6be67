"""The client behind a proxy, as the usual variables name it."""

import base64
import contextlib
import os
import select
import socket
import subprocess
import threading

import pytest
from support.deployment import CLI_PROGRAM, Deployment, wait_until
from support.free_port import free_port

pytestmark = pytest.mark.integration

NAME = "jobs.invalid"
LOGIN = base64.b64encode(b"me:se cret").decode()


class ForwardProxy:
    """Knows the name of the service, which nobody else does, and wants a login."""

    def __init__(self, port):
        self.seen = []
        self._port = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=self._serve, args=(self._listener.accept()[0],), daemon=True).start()

    def _serve(self, client):
        with client, contextlib.suppress(OSError):
            head = b""
            while b"\r\n\r\n" not in head:
                head += client.recv(65536)
            line, _, rest = head.partition(b"\r\n")
            method, target, _ = line.decode().split(" ")
            self.seen.append((method, target))
            if f"Proxy-Authorization: Basic {LOGIN}".encode() not in rest:
                client.sendall(b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n")
                return
            with socket.create_connection(("127.0.0.1", self._port)) as server:
                if method == "CONNECT":
                    client.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
                else:
                    path = target.removeprefix(f"http://{NAME}")
                    server.sendall(f"{method} {path} HTTP/1.1\r\nConnection: close\r\n".encode() + rest)
                while True:
                    for ready in select.select([client, server], [], [])[0]:
                        data = ready.recv(65536)
                        if not data:
                            return
                        (server if ready is client else client).sendall(data)

    def close(self):
        self._listener.close()


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    """A deployment that only the proxy's clients can name, and the proxy."""
    port = free_port()
    deployment = Deployment(tmp_path_factory.mktemp("proxied") / "home", GRADIENT_API__PUBLIC_URL=f"http://{NAME}")
    server = deployment.start("up", "--port", str(port))
    wait_until(lambda: "is ready" in server.read_log(), "the service")
    proxy = ForwardProxy(port)
    yield deployment, proxy
    proxy.close()
    deployment.stop()


def run(service, *arguments, **env):
    deployment, _ = service
    plain = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    return subprocess.run(
        [str(CLI_PROGRAM), *arguments],
        env=plain | {"GRADIENT_HOME": str(deployment.home)} | env,
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.parametrize("variable", ["http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"])
def test_requests_and_sessions_go_through_the_proxy(service, variable):
    proxy = service[1]
    named = {variable: f"http://me:se%20cret@127.0.0.1:{proxy.port}"}
    made = run(service, "jobs", "create", "-m", "CPU", "-d", "--workspace", "none", "--command", "sleep 60", **named)
    assert made.returncode == 0, made.stderr
    job_id = made.stdout.strip()
    wait_until(lambda: "Running" in run(service, "jobs", "show", job_id, **named).stdout, "the job to run")
    entered = run(service, "jobs", "exec", job_id, "--", "echo", "inside", **named)
    assert (entered.returncode, entered.stdout) == (0, "inside\n"), entered.stderr
    assert {"GET", "POST", "CONNECT"} <= {method for method, _ in proxy.seen}
    assert run(service, "jobs", "stop", "--now", job_id, **named).returncode == 0


def test_no_proxy_excepts_the_server(service):
    proxy = service[1]
    proxy.seen.clear()
    for excepted in (NAME, "other,.invalid", "*"):
        done = run(service, "jobs", "list", HTTP_PROXY=f"http://127.0.0.1:{proxy.port}", NO_PROXY=excepted)
        assert "cannot be resolved" in done.stderr
    done = run(service, "jobs", "list", "--url", "http://127.0.0.1:9", HTTP_PROXY=f"http://127.0.0.1:{proxy.port}")
    assert "nothing answers at http://127.0.0.1:9" in done.stderr
    assert proxy.seen == []


def test_an_error_names_the_variable(service):
    for variable in ("HTTP_PROXY", "all_proxy"):
        done = run(service, "jobs", "list", **{variable: "http://me:secret@127.0.0.1:9"})
        assert f"the proxy http://127.0.0.1:9 of {variable} does not lead to http://{NAME}" in done.stderr
        assert f"add {NAME} to NO_PROXY" in done.stderr
        assert "secret" not in done.stderr
        refused = run(service, "jobs", "list", **{variable: "socks5://127.0.0.1:9"})
        assert f"{variable} is not a valid proxy address" in refused.stderr
    tunnel = run(service, "jobs", "list", "--url", f"https://{NAME}", HTTPS_PROXY=f"http://127.0.0.1:{service[1].port}")
    assert "HTTPS_PROXY" in tunnel.stderr
    assert "407" in tunnel.stderr
