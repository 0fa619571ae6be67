"""Identifies the job that sent a datagram, for processes by asking the kernel.

A process is found by its socket: the kernel lists which socket has the address, and which processes hold it; the job is
in the environment that they inherited. A socket that was closed before the lookup is identified by its address for two
seconds after it was last seen, as long as no other socket has that address; later datagrams are dropped. The
environment is the job's own to change: among jobs of the process backend this prevents mistakes, not attacks.
Containers are found by `container_sender_lookup.py`.
"""

import contextlib
import ipaddress
import os
import re
import time
from collections.abc import Collection, Iterator
from importlib import import_module
from itertools import islice
from typing import Protocol

import psutil

from core.catalogue.backends import capabilities_of
from core.errors import JobNotFound
from core.ids import checked_job_id
from core.settings import Settings
from core.system.processes import read_environment
from worker.statsd.metrics_writer import Sender

Address = tuple[str, int]

LOOPBACK = "127.0.0.1"
_SCAN_INTERVAL_SECONDS = 0.2
CLOSED_SECONDS = 2.0
"""Time for which a sender that is gone is still known by its address."""
_MAX_SOCKETS = 4096
_MAX_DESCRIPTORS = 4096
"""Most open files of one process that are looked at."""
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
        self._seen = {address: seen for address, seen in self._seen.items() if seen[0] > now - CLOSED_SECONDS}
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
                with contextlib.suppress(OSError, psutil.Error, KeyError, ValueError, JobNotFound):
                    sender = self._sender_of(name)
                    if sender is not None:
                        found |= dict.fromkeys(_sockets_of(name), sender)
        self._by_inode = found
        self._scan_at = time.monotonic() + _SCAN_INTERVAL_SECONDS

    def _sender_of(self, pid: str) -> Sender | None:
        """Return the attempt that a process belongs to; None if it is not a job's of this server."""
        env = read_environment(int(pid), "GRADIENT_")
        sender = Sender(checked_job_id(env["GRADIENT_JOB_ID"]), int(env["GRADIENT_ATTEMPT"]))
        # Another server's jobs run on this host too.
        return sender if (self._attempts / f"{sender.job_id}-{sender.attempt}").is_dir() else None


def _udp_sockets() -> Iterator[tuple[Address, Address, int]]:
    """Yield the local address, the remote address and the inode of every IPv4 UDP socket of this host."""
    with contextlib.suppress(OSError), open("/proc/net/udp", encoding="ascii") as table:  # noqa: PTH123 - read often
        next(table, None)
        for line in table:
            fields = line.split()
            yield _parse_address(fields[1]), _parse_address(fields[2]), int(fields[9])


def _parse_address(text: str) -> Address:
    host, _, port = text.partition(":")
    # The kernel writes the address in the machine's byte order, which is little-endian wherever this runs.
    return str(ipaddress.IPv4Address(bytes.fromhex(host)[::-1])), int(port, 16)


def _sockets_of(pid: str) -> list[int]:
    inodes = []
    with os.scandir(f"/proc/{pid}/fd") as descriptors:
        for one in islice(descriptors, _MAX_DESCRIPTORS):
            with contextlib.suppress(OSError):
                socket = _SOCKET.match(os.readlink(one.path))  # noqa: PTH115 - no objects for thousands of names
                if socket:
                    inodes.append(int(socket[1]))
    return inodes


def make_sender_lookup(backend: str, settings: Settings) -> SenderLookup | None:
    """Return the lookup for a backend's jobs; None if they run on other machines, and cannot reach this one."""
    can = capabilities_of(backend)
    if not can.sends_metrics:
        return None
    if not can.containers:
        return ProcessSenderLookup(settings)
    # The engine's SDK takes memory and time, and a worker without containers does not need it.
    module = import_module("worker.statsd.container_sender_lookup")
    containers: SenderLookup = module.ContainerSenderLookup(settings)
    return containers
