"""The proxy of jobs whose network is loopback alone, as a process of its own, by real clients."""

import http.server
import json
import os
import socket
import subprocess
import sys
import threading

import httpx
import pytest
from support.deployment import EMPTY_SSL_CONTEXT, wait_until

from worker.sandbox import http_proxy

pytestmark = [pytest.mark.integration]


class Echo(http.server.BaseHTTPRequestHandler):
    """It closes a connection when asked to, without saying so."""

    protocol_version = "HTTP/1.1"

    def do_PUT(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        names = " ".join(name for name in self.headers if name.lower().startswith("proxy-"))
        answer = f"{self.command} {self.path} {len(body)} {names}".encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)


@pytest.fixture
def origin():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Echo)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    yield server.server_port
    server.shutdown()
    server.server_close()


@pytest.fixture
def sandbox():
    with subprocess.Popen(["sleep", "infinity"]) as process:
        yield process
        process.kill()


@pytest.fixture
def proxy(sandbox, origin):
    """Start a proxy that lets nothing through but the origin; return its address."""
    rules = [["127.0.0.1/32", origin, False], ["0.0.0.0/0", None, True]]
    pidfd = os.pidfd_open(sandbox.pid)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        words = [sys.executable, "-I", "-S", http_proxy.__file__, str(listener.fileno()), str(pidfd)]
        inherited = (listener.fileno(), pidfd)
        process = subprocess.Popen(words, stdin=subprocess.PIPE, pass_fds=inherited)
        address = listener.getsockname()
    os.close(pidfd)
    with process:
        process.stdin.write(json.dumps(rules).encode())
        process.stdin.close()
        yield process, address
        process.kill()


def spoken(address, head):
    with socket.create_connection(address, 20) as connection, connection.makefile("rb") as answer:
        connection.sendall(head)
        return answer.readline().decode().strip()


def test_requests_with_bodies_are_passed_on(proxy, origin):
    _, (host, port) = proxy
    with httpx.Client(proxy=f"http://user:word@{host}:{port}", verify=EMPTY_SSL_CONTEXT, timeout=60) as client:
        for _ in range(2):
            answer = client.put(f"http://localhost:{origin}/a%20b?c=d", content=b"x" * 300_000)
            assert (answer.status_code, answer.text) == (200, "PUT /a%20b?c=d 300000 ")
            assert answer.headers["Connection"] == "close", "a client must not send its next request here"


def test_an_interim_answer_is_not_the_end_of_the_head(proxy, origin):
    _, address = proxy
    with socket.create_connection(address, 20) as connection, connection.makefile("rb") as answer:
        head = (
            f"PUT http://localhost:{origin}/ HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n"
        )
        connection.sendall(head.encode())
        assert (answer.readline(), answer.readline()) == (b"HTTP/1.1 100 Continue\r\n", b"\r\n")
        connection.sendall(b"hi")
        final, _, body = answer.read().partition(b"\r\n\r\n")
        assert (final.count(b"Connection: close"), body) == (1, b"PUT / 2 ")


def test_a_tunnel_carries_bytes_both_ways(proxy, origin):
    _, address = proxy
    request = b"PUT /inside HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nConnection: close\r\n\r\nhi"
    with socket.create_connection(address, 20) as connection, connection.makefile("rb") as answer:
        connection.sendall(f"CONNECT 127.0.0.1:{origin} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        assert answer.readline() == b"HTTP/1.1 200 Connected\r\n"
        connection.sendall(request)
        assert answer.read().endswith(b"PUT /inside 2 ")


@pytest.mark.parametrize(
    "target",
    [
        *("127.0.0.1:1", "127.0.0.2:{}", "0.0.0.0:{}", "169.254.169.254:80", "10.0.0.1:80", "2130706434:{}"),
        *("0x7f.2:{}", "[::1]:{}", "[::ffff:127.0.0.2]:{}", "127.0.0.1:99999", "x@127.0.0.2:{}", "127.0.0.2%00:{}"),
    ],
)
def test_what_the_rules_refuse_is_refused_in_every_spelling(proxy, origin, target):
    _, address = proxy
    host = target.format(origin)
    for head in (f"CONNECT {host} HTTP/1.1", f"GET http://{host}/ HTTP/1.1", f"GET ftp://{host}/ HTTP/1.0"):
        status = spoken(address, f"{head}\r\nHost: 127.0.0.1:{origin}\r\n\r\n".encode())
        assert status.split()[1] in {"400", "403", "502"}, (head, status)


def test_it_ends_with_the_sandbox(proxy, sandbox):
    process, _ = proxy
    assert process.poll() is None
    sandbox.kill()
    wait_until(lambda: process.poll() == 0, "the proxy to end")
