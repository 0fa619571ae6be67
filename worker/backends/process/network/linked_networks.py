import math
import os
import random
import socket
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from typing import NamedTuple, TypeVar

from worker.backends.network_limits import JOBS_SUBNET, FirewallUnavailable, resolvers, run_iptables
from worker.backends.process.network.filtered_networks import FilteredNetworks
from worker.sandbox import netlink
from worker.sandbox.network_namespace import (
    LOOPBACK_INDEX,
    NetworkUnavailable,
    call_in_network,
    join_network,
    open_network,
)
from worker.sandbox.packet_filter import Rule

T = TypeVar("T")

LINK_PREFIX = "gjn"
"""Begins the names of the interfaces of all jobs of this host; the bridges of jobs' containers have other names."""
_FIRST, _PAIRS, _PREFIX_LENGTH = IPv4Network(JOBS_SUBNET)[0], 1 << 15, 31
_TRIES = 10
_RULES = f"""*filter
:GRADIENT-JOBS-THROUGH - [0:0]
-A GRADIENT-JOBS-THROUGH -i {LINK_PREFIX}+ -j ACCEPT
-A GRADIENT-JOBS-THROUGH -o {LINK_PREFIX}+ -m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT
COMMIT
*nat
:GRADIENT-JOBS-OUT - [0:0]
-A GRADIENT-JOBS-OUT -s {JOBS_SUBNET} ! -o {LINK_PREFIX}+ -j MASQUERADE
COMMIT
"""
"""They only let pass what the jobs' own filters have let pass, and are the same for all installations on a host."""
_JUMPS = (("filter", "FORWARD", "GRADIENT-JOBS-THROUGH"), ("nat", "POSTROUTING", "GRADIENT-JOBS-OUT"))
_FORWARDING = Path("/proc/sys/net/ipv4/ip_forward")
_CHECK_SECONDS = 60.0
_LEAST_READY, _KEPT_READY = 2, 4
_MOST_LENT, _MOST_UNUSED = 64, 16  # each takes three descriptors
_INTERFACES, _SENT, _COUNTERS_BYTES = slice(2, None), 8, 4096  # in the kernel's table of interfaces


class Network(NamedTuple):
    """Descriptors of a network: of its namespace, and of the kernel's tables of its interfaces and sockets."""

    namespace: int
    traffic: int
    sockets: int

    @classmethod
    def of_this_thread(cls) -> "Network":
        tables = (f"/proc/thread-self/net/{name}" for name in ("dev", "sockstat"))
        return cls(open_network(), *(os.open(table, os.O_RDONLY | os.O_CLOEXEC) for table in tables))

    def is_as_new(self) -> bool:
        """Return whether nobody has sent a packet in it, nor has a socket there, which a job may pass on."""
        interfaces = os.pread(self.traffic, _COUNTERS_BYTES, 0).splitlines()[_INTERFACES]
        sent = [line.partition(b":")[2].split()[_SENT] for line in interfaces]
        return {*sent} == {b"0"} and os.pread(self.sockets, _COUNTERS_BYTES, 0).startswith(b"sockets: used 0\n")

    def close(self) -> None:
        for descriptor in self:
            os.close(descriptor)


class _Lent(NamedTuple):
    network: Network
    project_id: str  # whose later jobs may get it


class LinkedNetworks(FilteredNetworks):
    """Networks that a worker that is root links with this host; a few are kept ready."""

    def __init__(self, limits: Callable[[list[str]], list[Rule]]) -> None:
        super().__init__(limits)
        self._ready: deque[Future[Network]] = deque()
        self._lent: dict[str, _Lent] = {}  # by the name of the attempt
        self._unused: deque[_Lent] = deque()
        self._maker = ThreadPoolExecutor(1, thread_name_prefix="networks")
        self._checked_at = -math.inf
        weakref.finalize(self, _close_all, self._ready, self._lent, self._unused).atexit = False

    def resolvers(self) -> list[str]:
        return [server for server in resolvers() if ":" not in server]

    def start(self, start: Callable[[], T], name: str | None = None, project_id: str = "") -> T:
        with self._lock:
            if time.monotonic() - self._checked_at > _CHECK_SECONDS:
                set_firewall()
                self._checked_at = time.monotonic()
            unused = next((lent for lent in self._unused if lent.project_id == project_id), None)
            if unused is not None:
                self._unused.remove(unused)
            made = self._ready.popleft() if unused is None and self._ready else None
        new = made.result if made is not None else self.make
        network = new() if unused is None else unused.network

        def start_behind_filter() -> T:
            if unused is None or not self.is_set(network.namespace, messages):
                self.send_filter(network.namespace, messages, netlink.send_filter)
            return start()

        try:
            messages = self.current_filter()
            started = call_in_network(network.namespace, start_behind_filter)
        except BaseException:
            network.close()
            raise
        finally:
            self._prepare()
        with self._lock:
            if name is None or name in self._lent or len(self._lent) == _MOST_LENT:
                network.close()
            else:
                self._lent[name] = _Lent(network, project_id)
        return started

    def give_back(self, name: str, *, ended: bool) -> None:
        with self._lock:
            over = self._lent.pop(name, None)
            if over is not None and ended and over.network.is_as_new():
                self._unused.append(over)
                over = self._unused.popleft() if len(self._unused) > _MOST_UNUSED else None
        if over is not None:
            over.network.close()

    def make(self) -> Network:
        """Return a new network that is linked with this host, and has no filter yet."""
        host = open_network()
        try:
            return call_in_network(None, lambda: _link(host))
        finally:
            os.close(host)

    def _prepare(self) -> None:
        """Make networks for the next jobs meanwhile, several at once: what wakes the thread costs as much as one."""
        with self._lock:
            missing = _KEPT_READY - len(self._ready) if len(self._ready) < _LEAST_READY else 0
            self._ready += [self._maker.submit(self.make) for _ in range(missing)]


def _close_all(ready: Iterable[Future[Network]], lent: Mapping[str, _Lent], unused: Iterable[_Lent]) -> None:
    made = [future.result() for future in ready if future.done() and future.exception() is None]
    for network in [*made, *(over.network for over in [*lent.values(), *unused])]:
        network.close()


def set_firewall() -> None:
    """Let linked networks reach what is beyond this host."""
    run_iptables("iptables-restore", "--wait", "5", "--noflush", given=_RULES)
    for table, chain, ours in _JUMPS:
        try:
            run_iptables("iptables", "--wait", "5", "-t", table, "-C", chain, "-j", ours)
        except FirewallUnavailable:
            run_iptables("iptables", "--wait", "5", "-t", table, "-I", chain, "-j", ours)
    if _FORWARDING.read_text().strip() == "0":
        run_iptables("iptables", "--wait", "5", "-P", "FORWARD", "DROP")  # else this host would be a router
        _FORWARDING.write_text("1")


def _link(host: int) -> Network:
    """Set up the new namespace that this thread is in, and link it with that of the host."""
    network = Network.of_this_thread()
    try:
        with suppress(FileNotFoundError):  # this kernel has no IPv6
            # For interfaces to come: to disable it on one that is there takes the kernel four times as long.
            Path("/proc/sys/net/ipv6/conf/default/disable_ipv6").write_text("1")
        name, here, there = _add_pair(host)
        eth0 = socket.if_nametoindex("eth0")
        up = netlink.set_up(LOOPBACK_INDEX) + netlink.set_up(eth0)
        netlink.send(netlink.add_address(eth0, there, _PREFIX_LENGTH) + up + netlink.add_default_route(here))
        join_network(host)
        index = socket.if_nametoindex(name)
        netlink.send(netlink.add_address(index, here, _PREFIX_LENGTH) + netlink.set_up(index))
    except BaseException:
        network.close()
        raise
    return network


def _add_pair(host: int) -> tuple[str, IPv4Address, IPv4Address]:
    """Return the name of the host's interface, and the addresses there and here: the kernel gives each name once."""
    for _ in range(_TRIES):
        pair = random.randrange(_PAIRS)  # noqa: S311 - no secret
        name, theirs, ours = f"{LINK_PREFIX}{pair:04x}", _FIRST + 2 * pair, _FIRST + 2 * pair + 1
        try:
            netlink.send(netlink.add_pair("eth0", name, host))
        except FileExistsError:
            continue
        return name, theirs, ours
    raise NetworkUnavailable(f"all addresses of {JOBS_SUBNET} are in use by other jobs")
