import logging
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path

from core.settings import Settings
from worker.backends.base import Handle, PortForward
from worker.backends.metric_sockets import MetricSockets
from worker.backends.port_forwarder import PortForwarder
from worker.runner.statsd import DATAGRAM_BYTES
from worker.sandbox.network_namespace import open_socket

logger = logging.getLogger(__name__)

LOOPBACK = "127.0.0.1"
_LOCAL = {"0.0.0.0": LOOPBACK, "::": "::1"}  # noqa: S104 - what a job listens on
_LISTENING = "0A"


class JobConnections:
    """Connections to jobs, most of which have a network of their own; usable from any thread."""

    def __init__(self, settings: Settings, find_sandbox: Callable[[Handle], int | None]) -> None:
        self._metrics_port = settings.statsd.port
        self._find_sandbox = find_sandbox
        self._forwarder = PortForwarder(settings.ports.bind, self.connect)
        self.metrics = MetricSockets()
        self.ports_on_host: dict[str, int] = {}

    def check_ports(self, name: str, ports: tuple[PortForward, ...]) -> None:
        self._forwarder.check(name, ports)

    def metrics_environment(self, name: str, *, own_network: bool, rank: int = 0) -> dict[str, str]:
        """Return the variable with the port of 127.0.0.1 to which an attempt may send metrics.

        In the host's network it is a port of its own, which is opened here; nodes, which share one, have one port each.
        """
        port = self._metrics_port_of(rank) if own_network else self._open_on_host(name)
        return {"GRADIENT_STATSD_PORT": str(port)} if port else {}

    def _metrics_port_of(self, rank: int) -> int:
        return self._metrics_port + rank if self._metrics_port else 0

    def _open_on_host(self, name: str) -> int | None:
        try:
            opened = _bind_on_host(0) if self._metrics_port else None
        except OSError as error:
            logger.warning("statsd_not_bound", extra={"attempt": name, "why": str(error)})
            opened = None
        if opened is None:
            return None
        self.ports_on_host[name] = opened.getsockname()[1]
        self.metrics.remove(name)  # of an earlier start of the same attempt
        self.metrics.add(name, opened)
        return self.ports_on_host[name]

    def serve(self, handle: Handle, first: int | None = None, kept: "KeptConnections | None" = None) -> None:
        """Open what leads to a job, unless it is open; called as long as the job runs.

        Args:
            first: The first process of its sandbox, if the caller knows it.
            kept: Of a sandbox that earlier jobs have used, and later ones will.
        """
        on_host = handle.get("metrics_port")
        if on_host is None:
            self._forwarder.serve(handle)
        if self._metrics_port and handle["name"] not in self.metrics:
            try:
                opened = self._open(handle, first, kept) if on_host is None else _bind_on_host(on_host)
            except OSError as error:  # somebody has the port, or the job has ended
                logger.info("statsd_not_bound", extra={"attempt": handle["name"], "why": str(error)})
                opened = None
            self.metrics.add(handle["name"], opened)

    def _open(self, handle: Handle, first: int | None, kept: "KeptConnections | None") -> socket.socket | None:
        """Open the port for metrics in the network of a job; None: it has ended."""
        first, port = first or self._find_sandbox(handle), self._metrics_port_of(handle.get("rank", 0))
        if kept is None or first is None:
            return open_socket(first, "udp", LOOPBACK, port) if first else None
        if port not in kept.metrics:
            kept.metrics[port] = open_socket(first, "udp", LOOPBACK, port)
        with suppress(BlockingIOError):
            while True:  # what a job that has ended sent last
                kept.metrics[port].recv(DATAGRAM_BYTES, socket.MSG_DONTWAIT)
        return kept.metrics[port].dup()

    def connect(self, handle: Handle, port: int) -> socket.socket:
        """Connect to a port of a job. Raises `OSError`: nothing listens there."""
        first = self._find_sandbox(handle)
        address = _listening_address(first, port) if first is not None else None
        if first is None or address is None:
            raise ConnectionRefusedError
        return open_socket(first, "tcp", address, port)

    def close(self, handle: Handle) -> None:
        self._forwarder.close(handle["name"])
        self.metrics.remove(handle["name"])
        self.ports_on_host.pop(handle["name"], None)


@dataclass
class KeptConnections:
    """The ways into a sandbox that several jobs use in turn."""

    metrics: dict[int, socket.socket] = field(default_factory=dict)  # sockets in its network by port

    def close(self) -> None:
        for metrics_socket in self.metrics.values():
            metrics_socket.close()


def _bind_on_host(port: int) -> socket.socket:
    """Return a socket at a port of this host, for datagrams from this host; 0: any free port."""
    opened = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        opened.bind((LOOPBACK, port))
    except OSError:
        opened.close()
        raise
    return opened


def _listening_address(first: int, port: int) -> str | None:
    """Return the address at which a port of a job's network is listened on; None: it is not."""
    for table in ("tcp", "tcp6"):
        path = Path(f"/proc/{first}/net/{table}")
        for line in path.read_text(encoding="ascii").splitlines()[1:] if path.exists() else ():
            local, _, state = line.split()[1:4]
            host, _, number = local.partition(":")
            if state == _LISTENING and int(number, 16) == port:
                # In words of the machine's byte order, which is little-endian wherever this runs.
                raw = bytes.fromhex(host)
                address = str(ip_address(b"".join(raw[i : i + 4][::-1] for i in range(0, len(raw), 4))))
                return _LOCAL.get(address, address)
    return None
