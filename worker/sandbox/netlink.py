"""Messages to the kernel about interfaces, addresses and routes (rtnetlink): `ip` takes ten times as long."""

import errno
import os
import socket
import struct
from ipaddress import IPv4Address

_NOTHING, _NEW_LINK, _NEW_ADDRESS, _NEW_ROUTE = 1, 16, 20, 24
_REQUEST, ACKNOWLEDGE, _EXCLUSIVE, CREATE = 0x1, 0x4, 0x200, 0x400
_ERROR = 2
_HEADER = struct.Struct("IHHII")
_MAIN_TABLE, _BOOT, _UNICAST = 254, 3, 1
_UP = 1
_NETFILTER = 12  # the protocol of netlink


def add_pair(here: str, there: str, network: int) -> bytes:
    """Add a pair of interfaces: one here, and one in the namespace of a descriptor."""
    peer = _link(0, up=False) + attribute(3, there.encode() + b"\0") + attribute(28, struct.pack("I", network))
    kind = attribute(1, b"veth") + attribute(2, attribute(1, peer))
    return message(_NEW_LINK, _link(0, up=False) + attribute(3, here.encode() + b"\0") + attribute(18, kind))


def set_up(index: int) -> bytes:
    return message(_NEW_LINK, _link(index, up=True), flags=0)


def add_address(index: int, address: IPv4Address, prefix: int) -> bytes:
    head = struct.pack("BBBBi", socket.AF_INET, prefix, 0, 0, index)
    return message(_NEW_ADDRESS, head + attribute(1, address.packed) + attribute(2, address.packed))


def add_default_route(gateway: IPv4Address) -> bytes:
    head = struct.pack("8BI", socket.AF_INET, 0, 0, 0, _MAIN_TABLE, _BOOT, 0, _UNICAST, 0)
    return message(_NEW_ROUTE, head + attribute(5, gateway.packed))


def send(messages: bytes) -> None:
    """Send messages to the kernel, in the namespace of this thread.

    Raises `OSError`: the kernel refused one; the others were carried out.
    """
    # It answers what it refuses, and the last.
    _send(socket.NETLINK_ROUTE, messages + _HEADER.pack(_HEADER.size, _NOTHING, _REQUEST | ACKNOWLEDGE, 0, 0))


def send_filter(messages: bytes) -> None:
    """Send those of `packet_filter.py`. Raises `OSError`: the kernel refused one, and has carried out none."""
    _send(_NETFILTER, messages)


def _send(protocol: int, messages: bytes) -> None:
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, protocol) as kernel:
        kernel.send(messages)
        answer = kernel.recv(8192, socket.MSG_DONTWAIT)
    kind, code = struct.unpack_from("H", answer, 4)[0], struct.unpack_from("i", answer, _HEADER.size)[0]
    if kind != _ERROR or code:
        code = -code if kind == _ERROR else errno.EPROTO
        raise OSError(code, os.strerror(code))


def _link(index: int, *, up: bool) -> bytes:
    return struct.pack("BxHiII", socket.AF_UNSPEC, 0, index, _UP if up else 0, _UP if up else 0)


def attribute(kind: int, value: bytes) -> bytes:
    return struct.pack("HH", 4 + len(value), kind) + value + b"\0" * (-len(value) % 4)


def message(kind: int, body: bytes, flags: int = CREATE | _EXCLUSIVE) -> bytes:
    return _HEADER.pack(_HEADER.size + len(body), kind, _REQUEST | flags, 0, 0) + body
