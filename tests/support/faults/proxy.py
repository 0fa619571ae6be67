"""A network between a process and a server that a test can slow down or take away, and an engine's bad moods."""

import contextlib
import random
import socket
import struct
import threading
import time

_RESET_ON_CLOSE = struct.pack("ii", 1, 0)


class Proxy:
    """Listens on loopback and passes bytes on to a server's Unix socket, or to its port on loopback.

    While it is `shut` nothing passes in either direction and no connection is refused or closed: what a cut cable
    and a frozen server look like from the other end. What was on its way arrives when it is opened again.

    Attributes:
        delay: Seconds that each message to the server waits: a statement's round trip takes so much longer.
    """

    def __init__(self, target: str | int) -> None:
        self._target = target
        self._open = threading.Event()
        self._open.set()
        self._connections: set[tuple[socket.socket, socket.socket]] = set()
        self._resetting: set[socket.socket] = set()
        self.delay = 0.0
        self._listen(0)
        self.port: int = self._listener.getsockname()[1]

    def url(self, direct: str) -> str:
        """The way to the database of this URL through the proxy."""
        name = direct.partition("@/")[2].partition("?")[0]
        return f"postgresql://gradient@127.0.0.1:{self.port}/{name}?sslmode=disable"

    def shut(self) -> None:
        self._open.clear()

    def open(self) -> None:
        self._open.set()

    def reset(self) -> None:
        """Break every connection, as a firewall does that forgets them."""
        for client, server in list(self._connections):
            self._resetting.add(client)
            for one in (client, server):
                with contextlib.suppress(OSError):
                    one.shutdown(socket.SHUT_RD)

    def refuse(self) -> None:
        """Break every connection, and refuse new ones, as a host does whose server is not there."""
        self._stop_listening()
        self.reset()

    def accept(self) -> None:
        """Take connections again."""
        self._listen(self.port)

    def close(self) -> None:
        self._stop_listening()
        for one in (one for both in list(self._connections) for one in both):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        self.open()

    def _listen(self, port: int) -> None:
        self._listener = socket.create_server(("127.0.0.1", port))
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def _stop_listening(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        """Pass bytes both ways until both have ended."""
        local = isinstance(self._target, str)
        with client, socket.socket(socket.AF_UNIX if local else socket.AF_INET) as server:
            try:
                server.connect(self._target if local else ("127.0.0.1", self._target))
            except OSError:
                return
            self._connections.add((client, server))
            answers = threading.Thread(target=self._forward, args=(server, client, False), daemon=True)
            answers.start()
            self._forward(client, server, slow=True)
            answers.join()
            self._connections.discard((client, server))
            if client in self._resetting:
                self._resetting.discard(client)
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)

    def _forward(self, source: socket.socket, sink: socket.socket, slow: bool) -> None:  # noqa: FBT001 - a plain fact
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if slow and self.delay:
                    time.sleep(self.delay)
                self._open.wait()
                if slow and self._intercept(source, sink, data):
                    break
                sink.sendall(data)
        for one in (source, sink):
            with contextlib.suppress(OSError):
                # What is to be reset must not be closed politely before.
                one.shutdown(socket.SHUT_RD if {source, sink} & self._resetting else socket.SHUT_RDWR)

    def _intercept(self, client: socket.socket, server: socket.socket, data: bytes) -> bool:
        """Deal with a client's message otherwise than by passing it on; if so, the connection ends with it."""
        del client, server, data
        return False


_METHODS = (b"GET ", b"POST ", b"DELETE ", b"HEAD ", b"PUT ")
_ERROR_BODY = b'{"message": "the engine is in trouble"}'
_ERROR_HEAD = b"HTTP/1.1 500 Internal Server Error\r\nContent-Type: application/json\r\nConnection: close\r\n"


class EngineProxy(Proxy):
    """Before a container engine.

    Attributes:
        refused: Share of requests that are answered with 500, and not passed on.
        lost: Share of requests whose answer never comes: they are passed on, and the connection breaks.
    """

    def __init__(self, target: str, seed: int = 13) -> None:
        super().__init__(target)
        self.refused_share = self.lost_share = 0.0
        self._random = random.Random(seed)  # noqa: S311 - repeatable, not secret

    @property
    def address(self) -> str:
        """The engine's address through the proxy."""
        return f"tcp://127.0.0.1:{self.port}"

    def _intercept(self, client: socket.socket, server: socket.socket, data: bytes) -> bool:
        if not data.startswith(_METHODS):
            return False
        refused, lost = self._random.random() < self.refused_share, self._random.random() < self.lost_share
        if not (refused or lost):
            return False
        data += _read_rest(client)
        if refused:
            client.sendall(_ERROR_HEAD + f"Content-Length: {len(_ERROR_BODY)}\r\n\r\n".encode() + _ERROR_BODY)
        else:
            client.shutdown(socket.SHUT_WR)
            server.sendall(data)
            server.settimeout(5)
            server.recv(1)  # it has done what it was asked for
        return True


def _read_rest(client: socket.socket) -> bytes:
    """Read what comes soon after a request's head: its body may arrive separately."""
    client.settimeout(0.1)
    try:
        return client.recv(65536)
    except TimeoutError:
        return b""
    finally:
        client.settimeout(None)
