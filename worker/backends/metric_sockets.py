import os
import select
import socket
import threading

from worker.runner.statsd import DATAGRAM_BYTES


class MetricSockets:
    """The sockets that jobs send metrics to, each for one job; a thread waits for all of them at once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ready = select.epoll()
        self._descriptors: dict[str, int | None] = {}
        self._names: dict[int, str] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._descriptors

    def fileno(self) -> int:
        """Return a descriptor that is readable when something was received."""
        return self._ready.fileno()

    def add(self, name: str, opened: socket.socket | None) -> None:
        """Add the socket of an attempt; None: it has none."""
        with self._lock:
            self._descriptors[name] = descriptor = opened.detach() if opened is not None else None
            if descriptor is not None:
                self._names[descriptor] = name
                self._ready.register(descriptor, select.EPOLLIN)

    def receive(self, count: int) -> list[tuple[bytes, str]]:
        """Return at most so many datagrams, with the attempts that have sent them."""
        with self._lock:
            ready = [descriptor for descriptor, _ in self._ready.poll(0, count)]
            return [(os.read(descriptor, DATAGRAM_BYTES), self._names[descriptor]) for descriptor in ready]

    def remove(self, name: str) -> None:
        with self._lock:
            descriptor = self._descriptors.pop(name, None)
            if descriptor is not None:
                del self._names[descriptor]
                self._ready.unregister(descriptor)  # its socket may stay open
                os.close(descriptor)

    def __del__(self) -> None:
        """Close the sockets, once no thread uses them any more."""
        for descriptor in self._names:
            os.close(descriptor)
