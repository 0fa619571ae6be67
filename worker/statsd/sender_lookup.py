"""Identifies the job that sent a datagram, by asking the kernel about processes or the engine about containers.

A process is found by its socket: the kernel lists which socket has the address, and which processes hold it; the job is
in the environment that they inherited. A socket that was closed before the lookup is identified by its address for two
seconds after it was last seen, as long as no other socket has that address; later datagrams are dropped. The
environment is the job's own to change: among jobs of the process backend this prevents mistakes, not attacks. A
container is found by the address that the engine gave it, which it cannot forge: it has no right to raw sockets. The
network is inspected, not the list of containers: that has a container only when its start is complete, which on a busy
machine is seconds after its first process has begun to send.
"""

import contextlib
import ipaddress
import os
import re
import time
from collections.abc import Collection
from typing import Any, Protocol

from core.catalogue.backends import capabilities_of
from core.errors import JobNotFound
from core.ids import checked_job_id
from core.settings import Settings
from worker.backends.docker.container.config import container_name
from worker.backends.docker.engine.client import Engine, EngineError
from worker.statsd.metrics_writer import Sender

Address = tuple[str, int]

LOOPBACK = "127.0.0.1"
_SCAN_INTERVAL_SECONDS = 0.2
_CLOSED_SECONDS = 2.0
_CACHE_SECONDS = 0.2
"""Shorter than any container's start, so that a reused address is not taken for its previous owner's."""
_MAX_SOCKETS = 4096
_CONTAINER = re.compile(re.escape(container_name("")) + r"(.+)-(\d+)\Z")
_NAMES = (b"GRADIENT_JOB_ID=", b"GRADIENT_ATTEMPT=")
_SOCKET = re.compile(r"socket:\[(\d+)\]\Z")


class SenderLookup(Protocol):
    """Maps sender addresses to jobs, for one kind of backend."""

    def listen_address(self) -> str | None:
        """Return the address of this host that those jobs send to; None while there is none."""

    def find_senders(self, addresses: Collection[Address]) -> dict[Address, Sender]:
        """Map addresses to the jobs that have them now; unknown ones are left out."""

    def is_sending_to(self, target: Address) -> bool:
        """Return whether a job may be sending to an address that this process does not have."""


class ProcessSenderLookup:
    """Jobs that are processes of this host."""

    def __init__(self, settings: Settings) -> None:
        self._attempts = settings.root / "attempts"
        self._by_inode: dict[int, Sender] = {}
        self._seen: dict[Address, tuple[float, Sender]] = {}
        self._scan_at = 0.0

    def listen_address(self) -> str | None:
        """See `SenderLookup.listen_address`."""
        return LOOPBACK

    def find_senders(self, addresses: Collection[Address]) -> dict[Address, Sender]:
        """See `SenderLookup.find_senders`; reads the kernel's table once for all addresses."""
        inodes = {local: inode for local, _, inode in _udp_sockets() if local in addresses}
        if not self._by_inode.keys() >= set(inodes.values()):
            self._scan()
        found = {address: self._by_inode[inode] for address, inode in inodes.items() if inode in self._by_inode}
        now = time.monotonic()
        closed = {one: self._seen[one][1] for one in addresses if one not in inodes and one in self._seen}
        self._seen = {address: seen for address, seen in self._seen.items() if seen[0] > now - _CLOSED_SECONDS}
        self._seen |= {address: (now, sender) for address, sender in found.items()}
        return found | {address: sender for address, sender in closed.items() if address in self._seen}

    def is_sending_to(self, target: Address) -> bool:
        """See `SenderLookup.is_sending_to`: a job's process has a socket connected to the address."""
        inodes = {inode for _, remote, inode in _udp_sockets() if remote == target}
        if inodes:
            self._scan()
        return not inodes.isdisjoint(self._by_inode)

    def _scan(self) -> None:
        # This scans every process: a job that opens a socket for each value must not keep the host busy with it.
        time.sleep(max(0.0, self._scan_at - time.monotonic()))
        found: dict[int, Sender] = {}
        for name in os.listdir("/proc"):  # noqa: PTH208 - no objects for thousands of names
            if name.isdecimal() and len(found) < _MAX_SOCKETS:
                with contextlib.suppress(OSError, KeyError, ValueError, JobNotFound):
                    sender = self._sender_of(name)
                    if sender is not None:
                        found |= dict.fromkeys(_sockets_of(name), sender)
        self._by_inode = found
        self._scan_at = time.monotonic() + _SCAN_INTERVAL_SECONDS

    def _sender_of(self, pid: str) -> Sender | None:
        """Return the attempt that a process belongs to; None if it is not a job's of this server."""
        with open(f"/proc/{pid}/environ", "rb") as file:  # noqa: PTH123 - read for every process at once
            env = dict(one.decode().split("=", 1) for one in file.read().split(b"\0") if one.startswith(_NAMES))
        sender = Sender(checked_job_id(env["GRADIENT_JOB_ID"]), int(env["GRADIENT_ATTEMPT"]))
        # Another server's jobs run on this host too.
        return sender if (self._attempts / f"{sender.job_id}-{sender.attempt}").is_dir() else None


class ContainerSenderLookup:
    """Jobs that are containers on this host's engine."""

    def __init__(self, settings: Settings) -> None:
        self._engine = Engine(settings.docker, timeout=min(5.0, settings.docker.timeout_seconds))
        self._network = settings.docker.network
        self._seen: dict[str, tuple[float, Sender]] = {}
        self._trusted_until = 0.0

    def listen_address(self) -> str | None:
        """See `SenderLookup.listen_address`: the gateway of the jobs' network, which is created with the first job."""
        try:
            network = self._inspect()
        except EngineError:
            return None
        configs = network["IPAM"]["Config"] or [{}]
        gateway: str | None = configs[0].get("Gateway")
        return gateway

    def find_senders(self, addresses: Collection[Address]) -> dict[Address, Sender]:
        """See `SenderLookup.find_senders`; the port is ignored, since the address is the container's own."""
        if time.monotonic() >= self._trusted_until or not self._seen.keys() >= {one for one, _ in addresses}:
            self._refresh()
        return {address: self._seen[address[0]][1] for address in addresses if address[0] in self._seen}

    def is_sending_to(self, target: Address) -> bool:  # noqa: ARG002 - containers have sockets of their own
        """See `SenderLookup.is_sending_to`: whether there are containers, as their sockets cannot be seen from here."""
        try:
            return bool(self._inspect()["Containers"])
        except EngineError:
            return False

    def _refresh(self) -> None:
        try:
            found = self._inspect()["Containers"] or {}
        except EngineError:
            return  # meanwhile the engine reassigns no addresses
        now = time.monotonic()
        self._seen = {address: seen for address, seen in self._seen.items() if seen[0] > now - _CLOSED_SECONDS}
        for one in found.values():
            if attempt := _CONTAINER.match(one["Name"]):
                self._seen[one["IPv4Address"].partition("/")[0]] = (now, Sender(attempt[1], int(attempt[2])))
        self._trusted_until = now + _CACHE_SECONDS

    def _inspect(self) -> dict[str, Any]:
        network: dict[str, Any] = self._engine.call(lambda api: api.inspect_network(self._network))
        return network


def _udp_sockets() -> list[tuple[Address, Address, int]]:
    """Return the local address, the remote address and the inode of every IPv4 UDP socket of this host."""
    found: list[tuple[Address, Address, int]] = []
    try:
        with open("/proc/net/udp", encoding="ascii") as table:  # noqa: PTH123 - read at every datagram: no detour
            next(table)
            for line in table:
                fields = line.split()
                found.append((_parse_address(fields[1]), _parse_address(fields[2]), int(fields[9])))
    except (OSError, StopIteration):
        return []
    return found


def _parse_address(text: str) -> Address:
    host, _, port = text.partition(":")
    # The kernel writes the address in the machine's byte order, which is little-endian wherever this runs.
    return str(ipaddress.IPv4Address(bytes.fromhex(host)[::-1])), int(port, 16)


def _sockets_of(pid: str) -> list[int]:
    folder = f"/proc/{pid}/fd"
    inodes = []
    for name in os.listdir(folder):  # noqa: PTH208 - one system call for each of thousands of descriptors
        with contextlib.suppress(OSError):
            socket = _SOCKET.match(os.readlink(f"{folder}/{name}"))  # noqa: PTH115 - likewise
            if socket:
                inodes.append(int(socket[1]))
    return inodes


def make_sender_lookup(backend: str, settings: Settings) -> SenderLookup | None:
    """Return the lookup for a backend's jobs; None if they run on other machines, and cannot reach this one."""
    can = capabilities_of(backend)
    if not can.sends_metrics:
        return None
    return ContainerSenderLookup(settings) if can.containers else ProcessSenderLookup(settings)
