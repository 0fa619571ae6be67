"""Connections that tell the nodes of jobs beside their TPU that a worker follows the job.

A node that nobody is connected to for `vm_abandoned_seconds` deletes itself: its worker will not.
"""

import contextlib
import socket
import threading
import time

_RECONNECT_SECONDS = 30.0  # the server closes a connection on which nothing is said after a minute
_CONNECT_SECONDS = 5.0


class WorkerPresence:
    """The connections of one worker; usable from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.until: dict[str, float] = {}
        self._over = threading.Condition(self._lock)

    def keep(self, name: str, url: str, seconds: float) -> None:
        """Stay connected to an attempt's device, `grpc://HOST:PORT,…`, for at least this long."""
        endpoints = [endpoint.removeprefix("grpc://").rpartition(":")[::2] for endpoint in url.split(",")]
        with self._lock:
            running = name in self.until
            self.until[name] = time.monotonic() + seconds
        if not running:
            addresses = [(host, int(port)) for host, port in endpoints]
            threading.Thread(target=self._stay, args=(name, addresses), name="tpu-presence", daemon=True).start()

    def end(self, name: str) -> None:
        """Close the connections to an attempt's device."""
        with self._lock:
            self.until.pop(name, None)
            self._over.notify_all()

    def _stay(self, name: str, addresses: list[tuple[str, int]]) -> None:
        while True:
            with contextlib.ExitStack() as held:
                for address in addresses:
                    with contextlib.suppress(OSError):
                        held.enter_context(socket.create_connection(address, _CONNECT_SECONDS))
                with self._lock:
                    self._over.wait_for(lambda: name not in self.until, _RECONNECT_SECONDS)
                    if self.until.get(name, 0.0) < time.monotonic():
                        self.until.pop(name, None)
                        return
