"""Clients of WebSockets that send too many frames, or read nothing of what they are sent."""

import asyncio
import contextlib
import logging
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial

import pytest
import uvicorn
from support.live_service import wait_until
from websockets.frames import Opcode
from websockets.protocol import State

from core.settings.api import ApiSettings
from service.http import websocket_connections
from service.http.connections import Connection, Connections, ConnectionTimes
from service.http.websocket_connections import (
    BLOCK_BYTES,
    FRAMES_PER_SECOND,
    MAX_FRAGMENTS,
    LimitedFrames,
    WebSocketConnection,
)

pytestmark = pytest.mark.integration

UPGRADE = (
    b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)
KIB = 1024


def frame(opcode: Opcode, data: bytes = b"", *, fin: bool = True) -> bytes:
    return bytes([fin << 7 | opcode, 0x80 | len(data)]) + bytes(4) + data


PING, PONG, TEXT, BINARY, CONT = Opcode.PING, Opcode.PONG, Opcode.TEXT, Opcode.BINARY, Opcode.CONT


class Served:
    """An ASGI application behind uvicorn, with small buffers, in a thread."""

    def __init__(self, app: Callable, times: ConnectionTimes, **options: object) -> None:
        listener = socket.create_server(("127.0.0.1", 0))
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * KIB)
        self.address = listener.getsockname()
        http = partial(Connection, connections=Connections(ApiSettings(), times))
        given = {"ws_ping_interval": None, "ws_per_message_deflate": False, "lifespan": "off", "log_config": None}
        config = uvicorn.Config(app, http=http, ws=WebSocketConnection, timeout_graceful_shutdown=0, **given | options)
        self.server = uvicorn.Server(config)
        self.open = self.server.server_state.connections
        self.sockets = contextlib.ExitStack()
        self._thread = threading.Thread(target=self.server.run, args=([listener],))
        self._thread.start()
        wait_until(lambda: self.server.started)

    def connect(self, sent: bytes = b"", *, accepted: bool = True) -> socket.socket:
        one = self.sockets.enter_context(socket.socket())
        one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 * KIB)
        one.settimeout(60)
        one.connect(self.address)
        one.sendall(sent + UPGRADE)
        if accepted:
            head = b""
            while not head.endswith(b"\r\n\r\n"):
                head += one.recv(1)
            assert head.startswith(b"HTTP/1.1 101 ")
        return one

    def protocol(self) -> WebSocketConnection:
        wait_until(lambda: any(isinstance(one, WebSocketConnection) for one in list(self.open)))
        [one] = list(self.open)
        return one

    def stop(self) -> None:
        for one in list(self.open):
            self.server.servers[0].get_loop().call_soon_threadsafe(one.transport.abort)
        self.sockets.close()
        self.server.should_exit = True
        self._thread.join(60)
        assert not self._thread.is_alive()


@pytest.fixture
def serve() -> Iterator[Callable[..., Served]]:
    served = []

    def begin(app: Callable, reading: float = 600, **options: object) -> Served:
        served.append(Served(app, ConnectionTimes(reading=reading), **options))
        return served[-1]

    yield begin
    for one in served:
        one.stop()


@pytest.fixture
def clock(monkeypatch) -> list[float]:
    """Replace the clock of the limits by this number."""
    now = [0.0]
    monkeypatch.setattr(websocket_connections, "monotonic", lambda: now[0])
    return now


class Listener:
    """An application that accepts, and counts messages."""

    def __init__(self) -> None:
        self.messages = 0
        self.most_queued = 0
        self.go_on = threading.Event()
        self.go_on.set()

    async def __call__(self, _scope, receive, send) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        await asyncio.to_thread(self.go_on.wait, 60)
        while (await receive())["type"] == "websocket.receive":
            self.messages += 1
            self.most_queued = max(self.most_queued, receive.__self__.queue.qsize())


async def talk(_scope, receive, send) -> None:
    """Send without end."""
    await receive()
    await send({"type": "websocket.accept"})
    while True:
        await send({"type": "websocket.send", "bytes": bytes(KIB)})


def read_frames(one: socket.socket) -> Iterator[tuple[int, bytes]]:
    """Read short frames until the connection ends."""
    with one.makefile("rb") as received:
        while head := received.read(2):
            yield head[0] & 15, received.read(head[1])


def test_pings_of_who_reads_nothing_take_no_memory_and_no_connection(serve, monkeypatch):
    monkeypatch.setattr(websocket_connections, "FRAMES_PER_SECOND", 10**9)
    app = Listener()
    served = serve(app, reading=3)
    client = served.connect()
    protocol = served.protocol()
    client.sendall(frame(PING, b"x" * 125) * 16_000 + frame(TEXT, b"x"))
    wait_until(lambda: app.messages == 1 or not served.open)
    assert protocol.transport.get_write_buffer_size() < 256 * KIB
    wait_until(lambda: not served.open)


def test_who_reads_again_gets_the_answer_to_its_last_ping(serve, monkeypatch):
    monkeypatch.setattr(websocket_connections, "FRAMES_PER_SECOND", 10**9)
    app = Listener()
    served = serve(app)
    client = served.connect()
    client.sendall(b"".join(frame(PING, b"%0125d" % number) for number in range(10_000)) + frame(TEXT, b"x"))
    wait_until(lambda: app.messages == 1)
    client.sendall(frame(Opcode.CLOSE, struct.pack("!H", 1000)))
    answers = []
    for opcode, data in read_frames(client):
        answers.append(int(data) if opcode == PONG else opcode)
    assert answers[-1] == Opcode.CLOSE
    assert len(answers) < 5000


def test_who_reads_nothing_is_cut_off(serve):
    served = serve(talk, reading=0.5)
    served.connect()
    wait_until(lambda: not served.open)


def test_who_reads_nothing_and_answers_no_ping_is_cut_off(serve):
    served = serve(talk, ws_ping_interval=0.2, ws_ping_timeout=0.5)
    served.connect()
    wait_until(lambda: not served.open)


@pytest.mark.parametrize("closes", [True, False])
def test_who_reads_nothing_of_the_end_is_cut_off(serve, closes):
    async def end(_scope, receive, send) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        while receive.__self__.transport.get_write_buffer_size() < 32 * KIB:  # sending pauses at 64 KiB
            await send({"type": "websocket.send", "bytes": bytes(KIB)})
        if closes:
            await send({"type": "websocket.close", "code": 1000})

    served = serve(end, reading=0.5)
    served.connect()
    wait_until(lambda: not served.open)


def test_who_reads_the_end_slowly_gets_all_of_it(serve):
    size = 60 * KIB  # sending pauses at 64 KiB

    async def send_and_close(_scope, _receive, send) -> None:
        await send({"type": "websocket.accept"})
        await send({"type": "websocket.send", "bytes": bytes(size)})
        await send({"type": "websocket.close"})

    served = serve(send_and_close, reading=1)
    one = served.connect()
    received = 0
    for _ in range(15):  # three times as long as a client may read nothing
        received += len(one.recv(3 * KIB))
        one.sendall(frame(PING))  # to a closed socket, this would lose what is unread
        time.sleep(0.2)
    while block := one.recv(64 * KIB):
        received += len(block)
        if received > size:
            break
    assert received > size


def test_a_timeout_of_an_earlier_response_does_not_end_a_session(serve):
    async def respond(scope, receive, send) -> None:
        if scope["type"] == "http":
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"1000000")]})
            await send({"type": "http.response.body", "body": b"x" * 1_000_000})
        else:
            await Listener()(scope, receive, send)

    served = serve(respond)
    client = served.connect(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", accepted=False)
    protocol = served.protocol()
    wait_until(lambda: protocol.upgraded_from)
    received = b""
    while b" 101 " not in received:
        received += client.recv(65536)
    assert protocol.upgraded_from._write_deadline is None
    client.sendall(frame(PING, b"one"))
    while not received.endswith(b"\x8a\x03one"):
        received += client.recv(65536)


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize("limited", [frame(PING), frame(PONG), frame(PING, b"x"), frame(TEXT), frame(BINARY)])
def test_frames_without_data_have_a_limit(serve, limited):
    served = serve(Listener())
    client = served.connect()
    client.sendall(limited * FRAMES_PER_SECOND + frame(PING, b"on"))
    answers = list(read_frames(client))
    assert answers[-1][1][:2] == struct.pack("!H", 1008)
    assert b"1000 control frames" in answers[-1][1]
    wait_until(lambda: not served.open)


@pytest.mark.usefixtures("clock")
def test_a_frame_over_the_limit_before_the_handshake_is_answered_ends_it(serve, caplog):
    go_on = threading.Event()

    async def wait(_scope, receive, _send) -> None:
        await receive()
        await asyncio.to_thread(go_on.wait, 60)

    served = serve(wait)
    client = served.connect(accepted=False)
    served.protocol()
    client.sendall(frame(PONG) * (FRAMES_PER_SECOND + 1))
    wait_until(lambda: not served.open)
    go_on.set()
    assert [one.message for one in caplog.records if one.name == "asyncio"] == []


@pytest.mark.usefixtures("clock")
def test_frames_with_data_have_no_limit_and_one_turn_takes_few(serve):
    app = Listener()
    app.go_on.clear()
    served = serve(app)
    client = served.connect()
    protocol = served.protocol()
    client.sendall(frame(BINARY, b"x") * 20_000)
    wait_until(lambda: protocol.read_paused)
    app.go_on.set()
    wait_until(lambda: app.messages == 20_000)
    assert app.most_queued <= BLOCK_BYTES // len(frame(BINARY, b"x")) + 1


@pytest.fixture
def parser(clock) -> LimitedFrames:
    assert clock == [0.0]
    limited = LimitedFrames(1024 * KIB, logging.getLogger("uvicorn.error"))
    limited.receive_data(UPGRADE)
    [request] = limited.events_received()
    limited.send_response(limited.accept(request))
    assert limited.state is State.OPEN
    return limited


@pytest.mark.parametrize("data", [b"", b"x"])
def test_fragments_have_the_same_limit(parser, data):
    parser.receive_data(frame(TEXT, data, fin=False) + frame(CONT, data, fin=False) * FRAMES_PER_SECOND)
    assert parser.close_sent.code == 1008
    assert len(parser.events_received()) == FRAMES_PER_SECOND


def test_a_message_has_so_many_fragments(parser, clock):
    for _ in range(2):
        parser.receive_data(frame(TEXT, b"x", fin=False))
        for _ in range(MAX_FRAGMENTS - 2):
            clock[0] += 1
            parser.receive_data(frame(CONT, b"x", fin=False) + frame(PING))
        parser.receive_data(frame(CONT, b"x"))
    assert parser.parser_exc is None
    parser.receive_data(frame(TEXT, b"x", fin=False))
    for _ in range(MAX_FRAGMENTS):
        clock[0] += 1
        parser.receive_data(frame(CONT, b"x", fin=False))
    assert parser.close_sent.code == 1008
    assert "1024 fragments" in parser.close_sent.reason
