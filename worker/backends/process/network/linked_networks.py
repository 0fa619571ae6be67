import math
import os
import random
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from ipaddress import IPv4Address
from pathlib import Path
from typing import TypeVar

from worker.backends.network_limits import FirewallUnavailable, inner_bridges, resolvers, run_iptables
from worker.sandbox import netlink
from worker.sandbox.netlink import Rule
from worker.sandbox.network_namespace import (
    JobNetwork,
    NetworkUnavailable,
    call_in_network,
    join_network,
    open_network,
)

T = TypeVar("T")

LINK_PREFIX = "gjn"
"""Begins the names of the interfaces of all jobs of this host; the bridges of jobs' containers have other names."""
_FIRST, _PAIRS, _SUBNET, _PREFIX_LENGTH = IPv4Address("198.19.0.0"), 1 << 15, "198.19.0.0/16", 31
_TRIES = 10
_RULES = f"""*filter
:GRADIENT-JOBS-IN - [0:0]
:GRADIENT-JOBS-THROUGH - [0:0]
-A GRADIENT-JOBS-IN -m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT
{{resolvers}}-A GRADIENT-JOBS-IN -j REJECT
{{bridges}}-A GRADIENT-JOBS-THROUGH -i {LINK_PREFIX}+ -o gj+ -j REJECT
-A GRADIENT-JOBS-THROUGH -i {LINK_PREFIX}+ -j ACCEPT
-A GRADIENT-JOBS-THROUGH -o {LINK_PREFIX}+ -m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT
-A GRADIENT-JOBS-THROUGH -o {LINK_PREFIX}+ -j DROP
COMMIT
*nat
:GRADIENT-JOBS-OUT - [0:0]
-A GRADIENT-JOBS-OUT -s {_SUBNET} ! -o {LINK_PREFIX}+ -j MASQUERADE
COMMIT
"""
"""The same for all installations on a host: what one of them blocks is in its jobs' namespaces."""
_JUMPS = (
    ("filter", "INPUT", "-i", f"{LINK_PREFIX}+", "-j", "GRADIENT-JOBS-IN"),
    ("filter", "FORWARD", "-j", "GRADIENT-JOBS-THROUGH"),
    ("nat", "POSTROUTING", "-j", "GRADIENT-JOBS-OUT"),
)
_FORWARDING = Path("/proc/sys/net/ipv4/ip_forward")
_CHECK_SECONDS = 60.0
_KEPT_READY = 2


class LinkedNetworks(JobNetwork):
    """Networks that a worker that is root links with this host; a few are kept ready.

    `limits`: returns the rules that keep a job from what it must not reach, given its DNS servers.
    """

    def __init__(self, limits: Callable[[list[str]], list[Rule]]) -> None:
        super().__init__()
        self._find_limits = limits
        self._limits = b""
        self._lock = threading.Lock()
        self._ready: deque[Future[int]] = deque()
        self._maker = ThreadPoolExecutor(1, thread_name_prefix="networks")
        self._checked_at = -math.inf

    def resolvers(self) -> list[str]:
        return [one for one in resolvers() if ":" not in one]

    def start(self, start: Callable[[], T]) -> T:
        with self._lock:
            if time.monotonic() - self._checked_at > _CHECK_SECONDS:
                set_firewall(self.resolvers())
                limits = netlink.add_rules(self._find_limits(self.resolvers()))
                if limits != self._limits:
                    self._limits, outdated = limits, self._ready
                    self._ready = deque()
                    for one in outdated:
                        one.add_done_callback(_close)
                self._checked_at = time.monotonic()
            made = self._ready.popleft() if self._ready else None
        network = self.make() if made is None else made.result()
        try:
            return call_in_network(network, start)
        finally:
            os.close(network)
            self._prepare()

    def make(self) -> int:
        """Return the descriptor of a new namespace that is linked with this host."""
        host = open_network()
        try:
            return call_in_network(None, lambda: _link(host, self._limits))
        finally:
            os.close(host)

    def _prepare(self) -> None:
        """Make networks for the next jobs meanwhile."""
        with self._lock:
            while len(self._ready) < _KEPT_READY:
                self._ready.append(self._maker.submit(self.make))


def _close(made: Future[int]) -> None:
    if made.exception() is None:
        os.close(made.result())


def set_firewall(servers: Iterable[str]) -> None:
    """Let linked networks reach what is beyond this host, and nothing on it or its bridges but its DNS servers."""
    open_ = [f"-d {one} -p {kind} --dport 53" for one in servers for kind in ("udp", "tcp")]
    lines = "".join(f"-A GRADIENT-JOBS-IN {one} -j ACCEPT\n" for one in open_)
    names = ("docker+", "br-+", *inner_bridges())
    bridges = "".join(f"-A GRADIENT-JOBS-THROUGH -i {LINK_PREFIX}+ -o {name} -j REJECT\n" for name in names)
    rules = _RULES.format(resolvers=lines, bridges=bridges)
    run_iptables("iptables-restore", "--wait", "5", "--noflush", given=rules)
    for table, chain, *rule in _JUMPS:
        try:
            run_iptables("iptables", "--wait", "5", "-t", table, "-C", chain, *rule)
        except FirewallUnavailable:
            run_iptables("iptables", "--wait", "5", "-t", table, "-I", chain, *rule)
    if _FORWARDING.read_text().strip() == "0":
        run_iptables("iptables", "--wait", "5", "-P", "FORWARD", "DROP")  # else this host would be a router
        _FORWARDING.write_text("1")


def _link(host: int, limits: bytes) -> int:
    """Set up the new namespace that this thread is in, and link it with that of the host; return its descriptor."""
    network = open_network()
    try:
        with suppress(FileNotFoundError):  # this kernel has no IPv6
            # For interfaces to come: to disable it on one that is there takes the kernel four times as long.
            Path("/proc/sys/net/ipv6/conf/default/disable_ipv6").write_text("1")
        name, here, there = _add_pair(host)
        eth0 = socket.if_nametoindex("eth0")
        up = netlink.set_up(socket.if_nametoindex("lo")) + netlink.set_up(eth0)
        netlink.send(netlink.add_address(eth0, there, _PREFIX_LENGTH) + up + netlink.add_default_route(here) + limits)
        join_network(host)
        index = socket.if_nametoindex(name)
        netlink.send(netlink.add_address(index, here, _PREFIX_LENGTH) + netlink.set_up(index))
    except BaseException:
        os.close(network)
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
    raise NetworkUnavailable(f"the interfaces of other jobs have all of {_SUBNET}")
