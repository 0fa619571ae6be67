"""Ports of the worker's host that lead to programs of a job that is elsewhere: on a TPU VM, or in its own network."""

import contextlib
import functools
import logging
import socket
import threading
import time
from collections.abc import Callable, Sequence

from worker.backends.base import Handle, PortForward
from worker.backends.port_check import check_ports_free
from worker.runner.streams import ExecRefused, relay

logger = logging.getLogger(__name__)

_POLL_SECONDS = 0.2
UNWANTED_SECONDS = 120.0  # another worker follows the job if this one was not asked for its ports for so long
MAX_CONNECTIONS = 100


class PortForwarder:
    """Serves the ports of the jobs that this worker follows; usable from any thread.

    `connect`: connects to a port of a job; raises `OSError` or `ExecRefused` where nothing listens.
    """

    def __init__(self, bind: str, connect: Callable[[Handle, int], socket.socket]) -> None:
        self._bind = bind
        self._connect = connect
        self._lock = threading.Lock()
        self._open: dict[tuple[str, int], Forward] = {}

    def check(self, name: str, ports: Sequence[PortForward]) -> None:
        """Check that the ports are free, or already open for this attempt. Raises `LaunchError`: one is not."""
        with self._lock:
            check_ports_free(self._bind, [port for port in ports if (name, port.external) not in self._open])

    def serve(self, handle: Handle) -> None:
        """Open the ports of a job, unless they are open; called as long as the job runs."""
        for external, internal in handle.get("ports", ()):
            with self._lock:
                forward = self._open.get((handle["name"], external))
                if forward is None or forward.closed:
                    forward = self._start(handle["name"], external, functools.partial(self._connect, handle, internal))
                if forward is not None:
                    forward.wanted_at = time.monotonic()

    def close(self, name: str) -> None:
        with self._lock:
            for key in [key for key in self._open if key[0] == name]:
                self._open.pop(key).close()

    def _start(self, name: str, external: int, connect: Callable[[], socket.socket]) -> "Forward | None":
        family = socket.AF_INET6 if ":" in self._bind else socket.AF_INET
        try:
            listener = socket.create_server((self._bind, external), family=family)
        except OSError as error:  # perhaps the last worker ends only now
            logger.warning("port_not_opened", extra={"attempt": name, "port": external, "error": str(error)})
            return None
        self._open[name, external] = forward = Forward(listener, connect)
        threading.Thread(target=forward.run, name=f"port-{external}", daemon=True).start()
        return forward


class Forward:
    """One port. `connect`: connects to what it leads to; raises `OSError` or `ExecRefused` where nothing listens."""

    def __init__(self, listener: socket.socket, connect: Callable[[], socket.socket]) -> None:
        self.wanted_at = time.monotonic()  # when it was last wanted, by the clock of `time.monotonic`
        self.closed = False
        self._connect = connect
        self._listener = listener
        self._lock = threading.Lock()
        self._connections: dict[socket.socket, socket.socket | None] = {}
        """The connections to the job, once there are any, by those to this port."""
        listener.settimeout(_POLL_SECONDS)

    def run(self) -> None:
        """Accept connections until it is closed, or nobody wants the port any more."""
        while not self.closed and time.monotonic() - self.wanted_at < UNWANTED_SECONDS:
            try:
                connection, _ = self._listener.accept()
            except TimeoutError:
                continue
            except OSError:  # no descriptor is free, for example
                time.sleep(_POLL_SECONDS)
                continue
            with self._lock:
                full = len(self._connections) >= MAX_CONNECTIONS
                if not full:
                    self._connections[connection] = None
            if full:
                connection.close()
                continue
            threading.Thread(target=self._relay, args=(connection,), name="port-forward", daemon=True).start()
        self.close()

    def close(self) -> None:
        self.closed = True
        self._listener.close()
        with self._lock:
            # Both ends: a VM that is gone says nothing more, and would be waited for.
            for opened in filter(None, (*self._connections, *self._connections.values())):
                with contextlib.suppress(OSError):
                    opened.shutdown(socket.SHUT_RDWR)

    def _relay(self, connection: socket.socket) -> None:
        try:
            with connection, self._connect() as other:
                with self._lock:
                    self._connections[connection] = other
                    if self.closed:
                        return
                relay(connection, other)
        except (OSError, ExecRefused) as error:  # nothing listens there yet, for example
            logger.info("port_not_forwarded", extra={"error": str(error)})
        finally:
            with self._lock:
                self._connections.pop(connection, None)
