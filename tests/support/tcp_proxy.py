"""A TCP proxy whose connections a test cuts: a network between two hosts."""

import contextlib
import socket
import socketserver
import threading
from collections.abc import Callable
from pathlib import Path

from worker.sandbox.network_namespace import call_in_network


class TcpProxy:
    """Forwards connections to a port of this machine until it is cut, then refuses and breaks them.

    `target`: the port, or the path of a Unix socket.
    `network`: descriptor of the network namespace in which it listens; None: this one.
    """

    def __init__(self, target: int | Path, network: int | None = None) -> None:
        self._network = network
        self._target = target
        self._sockets: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._server: socketserver.ThreadingTCPServer | None = None
        self.sent = 0
        """Bytes that it has carried, both ways."""
        self.received = bytearray()
        """The bytes that clients have sent through it."""
        self.cut_at: int | None = None
        """Value of `sent` at which the proxy cuts itself; None: never."""
        self.port = 0
        self.connect()

    @property
    def is_cut(self) -> bool:
        return self._server is None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def connect(self) -> None:
        proxy = self

        class Handler(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                proxy.forward(self.request)

        class Server(socketserver.ThreadingTCPServer):
            allow_reuse_address = True
            daemon_threads = True

        def listen() -> Server:
            return Server(("127.0.0.1", self.port), Handler)

        self._server = listen() if self._network is None else call_in_network(self._network, listen)
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def cut(self) -> None:
        if self._server is None:
            return
        self._server.shutdown()
        self._server.server_close()
        self._server = None
        with self._lock:
            for one in self._sockets:
                with contextlib.suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)

    def forward(self, client: socket.socket) -> None:
        try:
            service = _connect(self._target)
        except OSError:
            return
        with service:
            with self._lock:
                self._sockets |= {client, service}
            back = threading.Thread(target=_copy, args=(service, client, self._count), daemon=True)
            back.start()
            _copy(client, service, self._record)
            back.join()
            with self._lock:
                self._sockets -= {client, service}

    def _record(self, data: bytes) -> None:
        with self._lock:
            self.received += data
        self._count(data)

    def _count(self, data: bytes) -> None:
        with self._lock:
            self.sent += len(data)
            due = self.cut_at is not None and self.sent >= self.cut_at
            self.cut_at = None if due else self.cut_at
        if due:
            self.cut()


def _connect(target: int | Path) -> socket.socket:
    if isinstance(target, int):
        return socket.create_connection(("127.0.0.1", target))
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(str(target))
    return connection


def _copy(source: socket.socket, target: socket.socket, count: Callable[[bytes], None]) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
            count(data)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)
