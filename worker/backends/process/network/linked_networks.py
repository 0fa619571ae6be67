import math
import os
import random
import socket
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from typing import TypeVar

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


class LinkedNetworks(FilteredNetworks):
    """Networks that a worker that is root links with this host; a few are kept ready."""

    def __init__(self, limits: Callable[[list[str]], list[Rule]]) -> None:
        super().__init__(limits)
        self._ready: deque[Future[int]] = deque()
        self._maker = ThreadPoolExecutor(1, thread_name_prefix="networks")
        self._checked_at = -math.inf

    def resolvers(self) -> list[str]:
        return [server for server in resolvers() if ":" not in server]

    def start(self, start: Callable[[], T]) -> T:
        with self._lock:
            if time.monotonic() - self._checked_at > _CHECK_SECONDS:
                set_firewall()
                self._checked_at = time.monotonic()
            made = self._ready.popleft() if self._ready else None
        network = self.make() if made is None else made.result()

        def start_behind_filter() -> T:
            self.send_filter(network, messages, netlink.send_filter)
            return start()

        try:
            messages = self.current_filter()
            return call_in_network(network, start_behind_filter)
        finally:
            os.close(network)
            self._prepare()

    def make(self) -> int:
        """Return the descriptor of a new namespace that is linked with this host, and has no filter yet."""
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


def _link(host: int) -> int:
    """Set up the new namespace that this thread is in, and link it with that of the host; return its descriptor."""
    network = open_network()
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
    raise NetworkUnavailable(f"all addresses of {JOBS_SUBNET} are in use by other jobs")
