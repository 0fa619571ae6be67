"""The only network of a sandbox: a SOCKS proxy to one fixed destination, whatever its client requests."""

import socket
import threading
from collections.abc import Callable
from multiprocessing.connection import wait
from types import TracebackType
from typing import Self

_BLOCK = 64 * 1024
_MAX_CONNECTIONS = 32
"""At once; git opens a few, a hostile program would open as many as the worker has files for."""
_ACCEPTED = b"\x05\x00\x00\x01\0\0\0\0\0\0"
_REFUSED = b"\x05\x01\x00\x01\0\0\0\0\0\0"
_ADDRESS_BYTES = {1: 4, 4: 16}


class Tunnel:
    """Relays the connections of a listening socket to the destination, until the block is left.

    Args:
        connect: Makes a connection to the destination.
        silent_seconds: A connection that is silent in both directions for so long is closed.

    Attributes:
        problem: The reason that a connection failed, if one did.
    """

    def __init__(self, connect: Callable[[], socket.socket], silent_seconds: float) -> None:
        self._connect = connect
        self._idle_timeout_seconds = silent_seconds
        self._ended, self._end = socket.socketpair()
        self._threads: list[threading.Thread] = []
        self.problem: str | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end.close()  # wakes every thread
        for thread in self._threads:
            thread.join()
        self._ended.close()

    def serve(self, listener: socket.socket) -> None:
        """Serve a listening socket, and close it at the end."""
        self._threads.append(_start_thread(self._accept, listener))

    def _accept(self, listener: socket.socket) -> None:
        relays: list[threading.Thread] = []
        with listener:
            while self._ended not in wait([listener, self._ended]):
                inside = listener.accept()[0]
                relays = [relay for relay in relays if relay.is_alive()]
                if len(relays) < _MAX_CONNECTIONS:
                    relays.append(_start_thread(self._relay, inside))
                else:
                    inside.close()
        for relay in relays:
            relay.join()

    def _relay(self, inside: socket.socket) -> None:
        with inside:
            inside.settimeout(self._idle_timeout_seconds)
            try:
                _handshake(inside)
                outside = self._connect()
            except OSError as error:
                self.problem = f"no connection: {error.strerror or error}"
                _reply(inside, _REFUSED)
                return
            with outside:
                outside.settimeout(self._idle_timeout_seconds)
                _reply(inside, _ACCEPTED)
                try:
                    self._copy(inside, outside)
                except OSError as error:
                    self.problem = f"the connection broke: {error.strerror or error}"

    def _copy(self, inside: socket.socket, outside: socket.socket) -> None:
        other = {inside: outside, outside: inside}
        reading = [inside, outside]
        while reading:
            ready = wait([*reading, self._ended], self._idle_timeout_seconds)
            if not ready:
                self.problem = f"the server said nothing for {self._idle_timeout_seconds:g} seconds"
                return
            if self._ended in ready:
                return
            for one in reading[:]:
                if one not in ready:
                    continue
                block = one.recv(_BLOCK)
                if block:
                    other[one].sendall(block)
                else:
                    reading.remove(one)
                    other[one].shutdown(socket.SHUT_WR)


def _start_thread(run: Callable[[socket.socket], None], given: socket.socket) -> threading.Thread:
    thread = threading.Thread(target=run, args=(given,), name="tunnel", daemon=True)
    thread.start()
    return thread


def _handshake(inside: socket.socket) -> None:
    """Read the first messages of a SOCKS 5 client; the destination that it names is ignored."""
    with inside.makefile("rb", buffering=0) as answer:
        methods = _read_exactly(answer.read, 2)[1]
        _read_exactly(answer.read, methods)
        inside.sendall(b"\x05\x00")
        kind = _read_exactly(answer.read, 4)[3]
        _read_exactly(answer.read, _ADDRESS_BYTES.get(kind) or _read_exactly(answer.read, 1)[0])
        _read_exactly(answer.read, 2)


def _read_exactly(read: Callable[[int], bytes | None], size: int) -> bytes:
    got = b""
    while len(got) < size:
        more = read(size - len(got))
        if not more:
            raise OSError("no SOCKS 5")
        got += more
    return got


def _reply(inside: socket.socket, answer: bytes) -> None:
    try:
        inside.sendall(answer)
    except OSError:
        return  # the client has disconnected
