"""A network between a process and PostgreSQL that a test can slow down or take away."""

import contextlib
import socket
import threading
import time


class Proxy:
    """Listens on loopback and passes bytes on to a server's Unix socket.

    While it is `shut` nothing passes in either direction and no connection is refused or closed: what a cut cable
    and a frozen server look like from the other end. What was on its way arrives when it is opened again.

    Attributes:
        delay: Seconds that each message to the server waits: a statement's round trip takes so much longer.
    """

    def __init__(self, target: str) -> None:
        self._target = target
        self._open = threading.Event()
        self._open.set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sockets: list[socket.socket] = []
        self.delay = 0.0
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def port(self) -> int:
        return self._listener.getsockname()[1]

    def url(self, direct: str) -> str:
        """The way to the database of this URL through the proxy."""
        name = direct.partition("@/")[2].partition("?")[0]
        return f"postgresql://gradient@127.0.0.1:{self.port}/{name}?sslmode=disable"

    def shut(self) -> None:
        self._open.clear()

    def open(self) -> None:
        self._open.set()

    def close(self) -> None:
        for one in (self._listener, *self._sockets):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
        self.open()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.socket(socket.AF_UNIX)
                self._sockets += [client, server]
                try:
                    server.connect(self._target)
                except OSError:
                    client.close()
                    continue
                for source, sink, slow in ((client, server, True), (server, client, False)):
                    threading.Thread(target=self._pump, args=(source, sink, slow), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket, slow: bool) -> None:  # noqa: FBT001 - a plain fact
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if slow and self.delay:
                    time.sleep(self.delay)
                self._open.wait()
                sink.sendall(data)
        for one in (source, sink):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
