"""A host in a network namespace of its own, with a neighbour that has several addresses; only root can make them."""

import os
import selectors
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from ipaddress import IPv4Address
from pathlib import Path

from worker.sandbox import netlink
from worker.sandbox.network_namespace import call_in_network

PORT = 8000
PUBLIC, METADATA, PRIVATE, ALLOWED = "198.18.9.9", "169.254.169.254", "10.9.9.9", "10.9.9.8"
ADDRESS, SECOND_ADDRESS, BROADCAST = "198.18.0.2", "203.0.113.5", "198.18.0.255"
_ROUTER = "198.18.0.1"
_LOOPBACK = 1
_LINE_BYTES = 200


class OwnHost:
    """`network`: descriptor of its namespace."""

    def __init__(self, network: int) -> None:
        self.network = network
        self.arrived: set[str] = set()
        """Each line that the host or its neighbour got, at PORT of any address."""

    @property
    def inside(self) -> tuple[str, ...]:
        """Words before a command that is to run on it."""
        return ("nsenter", f"--net=/proc/{os.getpid()}/fd/{self.network}", "--")

    def add_address(self, address: str) -> None:
        call_in_network(self.network, lambda: _add(_LOOPBACK, address, 32))

    def record(self, network: int, stack: ExitStack) -> None:
        """Record what arrives in a network until the stack is closed."""
        opened = call_in_network(network, lambda: [_bind(socket.SOCK_STREAM), _bind(socket.SOCK_DGRAM)])
        ends = socket.socketpair()
        waiting = selectors.DefaultSelector()
        for one in (*opened, ends[0]):
            waiting.register(one, selectors.EVENT_READ)

        def run() -> None:
            while ends[0] not in (ready := [key.fileobj for key, _ in waiting.select()]):
                for one in ready:
                    self._receive(one, opened, waiting)

        thread = threading.Thread(target=run)
        thread.start()
        for one in (*(key.fileobj for key in waiting.get_map().values()), ends[1], waiting):
            stack.callback(one.close)
        stack.callback(thread.join)
        stack.callback(ends[1].send, b".")

    def _receive(self, source: socket.socket, opened: list[socket.socket], waiting: selectors.BaseSelector) -> None:
        if source is opened[0]:
            connection, _ = source.accept()
            self.arrived.add(f"connection to {connection.getsockname()[0]}")
            waiting.register(connection, selectors.EVENT_READ)
            return
        with suppress(ConnectionError):
            data = source.recv(_LINE_BYTES)
            self.arrived |= set(data.decode().splitlines())
        if source is not opened[1]:
            waiting.unregister(source)
            source.close()


@contextmanager
def own_host() -> Iterator[OwnHost]:
    with ExitStack() as stack:
        host, outside = (call_in_network(None, _open_network) for _ in range(2))
        for network in (host, outside):
            stack.callback(os.close, network)

        def set_up_host() -> None:
            netlink.send(netlink.add_pair("out0", "eth0", outside))
            # The worst that a host may be: it answers for every address.
            Path("/proc/sys/net/ipv4/conf/all/proxy_arp").write_text("1")
            Path("/proc/sys/net/ipv4/conf/all/rp_filter").write_text("0")
            Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
            _add(socket.if_nametoindex("out0"), ADDRESS, 24)
            _add(_LOOPBACK, SECOND_ADDRESS, 32)

        def set_up_outside() -> None:
            _add(socket.if_nametoindex("eth0"), _ROUTER, 24)
            for address in (PUBLIC, METADATA, PRIVATE, ALLOWED):
                _add(_LOOPBACK, address, 32)
            netlink.send(netlink.add_default_route(IPv4Address(ADDRESS)))

        call_in_network(host, set_up_host)
        call_in_network(outside, set_up_outside)
        call_in_network(host, lambda: netlink.send(netlink.add_default_route(IPv4Address(_ROUTER))))
        made = OwnHost(host)
        for network in (host, outside):
            made.record(network, stack)
        yield made


def _open_network() -> int:
    return os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)


def _add(index: int, address: str, prefix: int) -> None:
    netlink.send(netlink.add_address(index, IPv4Address(address), prefix) + netlink.set_up(index))


def _bind(kind: int) -> socket.socket:
    opened = socket.socket(socket.AF_INET, kind)
    opened.bind(("", PORT))
    if kind == socket.SOCK_STREAM:
        opened.listen(500)
    return opened
