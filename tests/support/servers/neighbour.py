"""A neighbour of this host, which listens; only root can make one."""

import itertools
import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from ipaddress import IPv4Address

from worker.sandbox import netlink
from worker.sandbox.network_namespace import call_in_network

PORT = 8000
_NUMBERS = itertools.count()


@contextmanager
def neighbour(network: str = "198.18") -> Iterator[tuple[str, int]]:
    """Yield the address of a neighbour that listens on PORT, and its network.

    Args:
        network: The first half of its address.
    """
    number = next(_NUMBERS)
    here, there = (IPv4Address(f"{network}.{os.getpid() % 256}.{2 * number + end}") for end in (0, 1))
    name = f"out{os.getpid() % 100_000}-{number}"
    with ExitStack() as stack:
        inside = call_in_network(None, lambda: os.open("/proc/thread-self/ns/net", os.O_RDONLY))
        stack.callback(os.close, inside)
        netlink.send(netlink.add_pair(name, "eth0", inside))
        netlink.send(netlink.add_address(socket.if_nametoindex(name), here, 31))

        def listen() -> socket.socket:
            eth0 = socket.if_nametoindex("eth0")
            netlink.send(netlink.add_address(eth0, there, 31) + netlink.set_up(eth0))
            netlink.send(netlink.add_default_route(here))
            return socket.create_server((str(there), PORT))

        stack.enter_context(call_in_network(inside, listen))
        yield str(there), inside
