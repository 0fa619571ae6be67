"""Clients that open connections and do not use them as they should: silent, half-sent, slow, or far too many."""

import contextlib
import json
import socket
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest
from support.constants import set_constants
from support.deployment import Deployment, wait_until
from support.live_service import LiveServer, make_form, make_job_body, make_zip

from core.security.api_keys import ApiKeyCache
from core.settings.api import ApiSettings
from service.http.asgi_scope import client_network
from service.http.connections import ConnectionTimes
from service.main import create_app

pytestmark = pytest.mark.integration

HEALTH = b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"
HALF = b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: "
UPGRADE = (
    b"GET /jobs/x/exec HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
)


@pytest.fixture
def serve(settings, database, api_key) -> Iterator[Callable[..., LiveServer]]:
    """Serve with these limits and times."""
    served = []

    def begin(times: ConnectionTimes = ConnectionTimes(), **limits: object) -> LiveServer:
        api = ApiSettings.model_validate(settings.api.model_dump() | limits)
        app = create_app(settings.model_copy(update={"api": api}), database=database, wake=list)
        served.append(LiveServer(app, api_key, times))
        return served[-1]

    yield begin
    for live in served:
        live.stop()


@pytest.fixture
def sockets() -> Iterator[contextlib.ExitStack]:
    with contextlib.ExitStack() as stack:
        yield stack


def connect(
    live_server: LiveServer, stack: contextlib.ExitStack, sent: bytes = b"", source: str = "127.0.0.1"
) -> socket.socket:
    one = stack.enter_context(socket.create_connection(("127.0.0.1", live_server.port), 60, (source, 0)))
    one.sendall(sent)
    return one


def all_of(one: socket.socket) -> bytes:
    """Receive everything until the other end closes."""
    answer = b""
    with contextlib.suppress(ConnectionResetError):
        while block := one.recv(65536):
            answer += block
    return answer


def ask(live_server: LiveServer, stack: contextlib.ExitStack, source: str = "127.0.0.1") -> bytes:
    return all_of(connect(live_server, stack, HEALTH, source))[:12]


@pytest.mark.parametrize("sent", [b"", b"GET", HALF, HEALTH.replace(b"Connection: close\r\n", b"") + HALF])
def test_a_head_that_does_not_come_ends_the_connection(serve, sockets, sent):
    set_constants({"service.http.server.IDLE_SECONDS": 1})
    live = serve(ConnectionTimes(head=1.0 if b"\r\n\r\n" in sent else 0.3))
    silent = connect(live, sockets, sent)
    answer = all_of(silent)
    assert answer.count(b"HTTP/1.1 ") == sent.count(b"\r\n\r\n")


def test_a_head_that_drips_ends_all_the_same(serve, sockets):
    live = serve(ConnectionTimes(head=0.3))
    drip = connect(live, sockets, HALF)
    drip.settimeout(0.02)
    for _ in range(3000):
        try:
            drip.sendall(b"x")
            assert drip.recv(1) == b""
        except TimeoutError:
            continue
        except (ConnectionResetError, BrokenPipeError):
            pass
        return
    pytest.fail("a byte now and then kept the connection open")


@pytest.mark.parametrize("path", ["/jobs", "/health", "/ui/login"])
def test_a_request_with_two_lengths_is_refused_and_its_connection_ends(serve, sockets, path):
    live = serve()
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n"
    smuggled = f"GET /jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nx-api-key: {live.api_key}\r\n\r\n"
    answer = all_of(connect(live, sockets, f"{head}0\r\n\r\n{smuggled}".encode()))
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert answer.count(b"HTTP/1.1 ") == 1


@pytest.mark.parametrize("body", [b"", b'{"machineType"'])
def test_a_body_that_does_not_come_ends_the_connection(serve, sockets, body):
    live = serve(ConnectionTimes(body=0.3))
    head = f"POST /jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nx-api-key: {live.api_key}\r\nContent-Length: 1000\r\n"
    silent = connect(live, sockets, f"{head}Content-Type: application/json\r\n\r\n".encode() + body)
    all_of(silent)
    wait_until(lambda: not live.server.server_state.tasks, "the request to end")


def test_a_slow_upload_that_goes_on_is_taken(serve, sockets, monkeypatch):
    monkeypatch.setattr("service.http.connections.MIN_BODY_BYTES", 1)
    live = serve(ConnectionTimes(body=1.5))
    request = live.client().build_request(
        "POST", "/jobs", files=make_form(make_job_body(), make_zip({"main.py": bytes(3)}))
    )
    body = request.read()
    head = f"POST /jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nx-api-key: {live.api_key}\r\nContent-Length: {len(body)}\r\n"
    slow = connect(live, sockets, f"{head}Content-Type: {request.headers['content-type']}\r\n\r\n".encode())
    slow.settimeout(0.2)
    for byte in range(12):  # 2.4 s, all in all
        slow.sendall(body[byte : byte + 1])
        with pytest.raises(TimeoutError):
            slow.recv(1)
    slow.settimeout(60)
    slow.sendall(body[12:])
    assert slow.recv(12) == b"HTTP/1.1 201"


def test_a_body_is_not_late_before_it_was_asked_for(serve, sockets, monkeypatch):
    live = serve(ConnectionTimes(body=2.0))
    authenticate = ApiKeyCache.authenticate
    go_on = threading.Event()

    def slow(ring: ApiKeyCache, secret: str) -> object:
        assert go_on.wait(60)
        return authenticate(ring, secret)

    monkeypatch.setattr(ApiKeyCache, "authenticate", slow)
    body = json.dumps(make_job_body()).encode()
    head = f"POST /jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nx-api-key: {live.api_key}\r\nContent-Length: {len(body)}\r\n"
    one = connect(live, sockets, f"{head}Content-Type: application/json\r\nExpect: 100-continue\r\n\r\n".encode())
    one.settimeout(2.5)
    with pytest.raises(TimeoutError):
        one.recv(1)
    one.settimeout(60)
    go_on.set()
    assert one.recv(25) == b"HTTP/1.1 100 Continue\r\n\r\n"
    one.sendall(body)
    assert one.recv(12) == b"HTTP/1.1 201"


def test_who_reads_nothing_of_an_answer_is_cut_off(serve, sockets):
    live = serve(ConnectionTimes(reading=1.5))
    deaf = sockets.enter_context(socket.socket())
    deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    deaf.connect(("127.0.0.1", live.port))
    with contextlib.suppress(ConnectionError):
        deaf.sendall(b"GET /openapi.json HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" * 200)
    state = live.server.server_state
    wait_until(lambda: [one for one in list(state.connections) if one.flow.write_paused], "the service to wait for it")
    wait_until(lambda: not state.connections, "the connection to be cut off")


def test_an_idle_follower_of_a_log_is_left_alone(serve, sockets, submit):
    set_constants({"service.http.server.IDLE_SECONDS": 1})
    live = serve(ConnectionTimes(head=1.0, body=0.2, reading=0.2))
    head = f"GET /jobs/{submit().id}/logs HTTP/1.1\r\nHost: 127.0.0.1\r\nx-api-key: {live.api_key}\r\n"
    follower = connect(live, sockets, f"{head}Accept: text/event-stream\r\n\r\n".encode())
    assert follower.recv(12) == b"HTTP/1.1 200"
    follower.settimeout(1.5)
    ended = False
    with contextlib.suppress(TimeoutError):
        while follower.recv(65536):
            pass
        ended = True
    assert not ended


def test_silent_connections_make_way_for_those_that_ask(serve, sockets):
    live = serve(max_connections=20, max_connections_per_client=20)
    silent = [connect(live, sockets, HALF) for _ in range(60)]
    assert ask(live, sockets) == b"HTTP/1.1 200"
    assert all_of(silent[0]) == b""
    wait_until(lambda: len(live.server.server_state.connections) <= 20, "the oldest to be closed")
    assert ask(live, sockets) == b"HTTP/1.1 200"


def test_one_address_leaves_room_for_others(serve, sockets):
    live = serve(max_connections=20, max_connections_per_client=10)
    head = (
        f"POST /jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nx-api-key: {live.api_key}\r\nContent-Length: 1000\r\n\r\n".encode()
    )
    for _ in range(10):
        connect(live, sockets, head)
    wait_until(lambda: len(live.server.server_state.tasks) == 10, "the requests to begin")
    refused = all_of(connect(live, sockets))
    assert refused.startswith(b"HTTP/1.1 503 ")
    assert b"Retry-After: " in refused
    assert b"10 connections from your address are open" in refused
    assert ask(live, sockets, source="127.0.0.2") == b"HTTP/1.1 200"
    for _ in range(10):
        connect(live, sockets, head, source="127.0.0.2")
    wait_until(lambda: len(live.server.server_state.tasks) == 20, "the requests to begin")
    assert b"20 connections are open, " in all_of(connect(live, sockets, source="127.0.0.3"))


def test_a_trusted_proxy_may_open_as_many_as_there_are(serve, sockets):
    live = serve(max_connections=20, max_connections_per_client=1, trusted_proxies=["127.0.0.0/8"])
    head = (
        f"POST /jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nx-api-key: {live.api_key}\r\nContent-Length: 1000\r\n\r\n".encode()
    )
    for _ in range(5):
        connect(live, sockets, head)
    wait_until(lambda: len(live.server.server_state.tasks) == 5, "the requests to begin")
    assert ask(live, sockets) == b"HTTP/1.1 200"


@pytest.mark.parametrize(
    "body",
    [
        b"Content-Length: 3\r\n\r\n",
        b"Content-Length: 3\r\n\r\nabc",
        b"Content-Length: 100000000000\r\n\r\nabc",
        b"Transfer-Encoding: chunked\r\n\r\n",
    ],
)
@pytest.mark.parametrize("before", [b"", HEALTH.replace(b"Connection: close\r\n", b"")])
def test_a_handshake_with_a_body_is_refused(serve, sockets, before, body):
    answer = all_of(connect(serve(), sockets, before + UPGRADE + body))
    assert answer.count(b"HTTP/1.1 200 OK") == before.count(b"GET")
    assert answer.count(b"HTTP/1.1 400 ") == 1


def test_handshakes_with_a_body_leave_room_for_others(serve, sockets):
    live = serve(max_connections=20, max_connections_per_client=20)
    for _ in range(40):
        connect(live, sockets, UPGRADE + b"Content-Length: 3\r\n\r\n")
    wait_until(lambda: ask(live, sockets, source="127.0.0.2") == b"HTTP/1.1 200", "room for another client")
    wait_until(lambda: not live.server.server_state.connections, "the handshakes to end")


def test_a_handshake_that_is_not_answered_ends(serve, sockets, monkeypatch):
    live = serve(ConnectionTimes(head=0.3))
    go_on = threading.Event()
    monkeypatch.setattr(ApiKeyCache, "authenticate", lambda *_: go_on.wait(60))
    silent = connect(live, sockets, UPGRADE + f"x-api-key: {live.api_key}\r\n\r\n".encode())
    try:
        assert all_of(silent) == b""
    finally:
        go_on.set()


@pytest.mark.parametrize("headers", [b"a: b\r\n" * 20_000, b"x: " + b"y" * 200_000, b"x: y\r\n " * 20_000])
def test_very_many_or_long_headers_stop_nothing(serve, sockets, headers):
    live = serve()
    one = connect(live, sockets)
    with contextlib.suppress(ConnectionError):
        one.sendall(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n" + headers + b"\r\n\r\n")
    assert all_of(one)[:12] in {b"HTTP/1.1 200", b"HTTP/1.1 400", b""}  # a reset where we closed before all was sent
    assert ask(live, sockets) == b"HTTP/1.1 200"


def test_a_thousand_half_sent_requests_with_few_descriptors_neither_stop_it_nor_fill_its_log(tmp_path, sockets):
    deployment = Deployment(tmp_path / "home")
    try:
        few = ["prlimit", "--nofile=256:256", "--"]
        api = deployment.start("api", "--port", "0", inside=few)
        deployment.wait_ready(api)
        port = int(deployment.cli_json["url"].rpartition(":")[2])
        live = SimpleNamespace(port=port)
        for _ in range(1000):
            connect(live, sockets, HALF)
        for _ in range(20):
            assert ask(live, sockets) == b"HTTP/1.1 200"
        assert deployment.request("GET", "/jobs").status_code == 200
        assert api.read_log().count("\n") < 200
        assert "Traceback" not in api.read_log()
    finally:
        deployment.stop()


@pytest.mark.parametrize(
    ("address", "name"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("testclient", "testclient"),
        (None, ""),
    ],
)
def test_a_client_is_its_address_or_its_network(address, name):
    assert client_network(address) == name
