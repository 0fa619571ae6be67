"""Messages to the kernel about interfaces, addresses, routes and rules (rtnetlink): `ip` takes ten times as long."""

import errno
import os
import socket
import struct
from collections.abc import Iterable
from ipaddress import IPv4Address, IPv4Network
from typing import NamedTuple

_NOTHING, _NEW_LINK, _NEW_ADDRESS, _NEW_ROUTE, _NEW_RULE = 1, 16, 20, 24, 32
_REQUEST, _ACKNOWLEDGE, _EXCLUSIVE, _CREATE = 0x1, 0x4, 0x200, 0x400
_ERROR = 2
_HEADER = struct.Struct("IHHII")
_MAIN_TABLE, _BOOT, _UNICAST = 254, 3, 1
_TO_TABLE, _PROHIBIT = 1, 8
_UP = 1


class Rule(NamedTuple):
    """Prohibits or allows packets to addresses, perhaps only of one protocol to one port."""

    order: int
    to: IPv4Network
    protocol: int | None = None
    port: int | None = None
    prohibit: bool = True


def add_pair(here: str, there: str, network: int) -> bytes:
    """Add a pair of interfaces: one here, and one in the namespace of a descriptor."""
    peer = _link(0, up=False) + _attribute(3, there.encode() + b"\0") + _attribute(28, struct.pack("I", network))
    kind = _attribute(1, b"veth") + _attribute(2, _attribute(1, peer))
    return _message(_NEW_LINK, _link(0, up=False) + _attribute(3, here.encode() + b"\0") + _attribute(18, kind))


def set_up(index: int) -> bytes:
    return _message(_NEW_LINK, _link(index, up=True), create=False)


def add_address(index: int, address: IPv4Address, prefix: int) -> bytes:
    head = struct.pack("BBBBi", socket.AF_INET, prefix, 0, 0, index)
    return _message(_NEW_ADDRESS, head + _attribute(1, address.packed) + _attribute(2, address.packed))


def add_default_route(gateway: IPv4Address) -> bytes:
    head = struct.pack("8BI", socket.AF_INET, 0, 0, 0, _MAIN_TABLE, _BOOT, 0, _UNICAST, 0)
    return _message(_NEW_ROUTE, head + _attribute(5, gateway.packed))


def add_rules(rules: Iterable[Rule]) -> bytes:
    return b"".join(map(_add_rule, rules))


def _add_rule(rule: Rule) -> bytes:
    action, table = (_PROHIBIT, 0) if rule.prohibit else (_TO_TABLE, _MAIN_TABLE)
    body = struct.pack("8BI", socket.AF_INET, rule.to.prefixlen, 0, 0, table, 0, 0, action, 0)
    body += _attribute(1, rule.to.network_address.packed) + _attribute(6, struct.pack("I", rule.order))
    if rule.protocol is not None:
        body += _attribute(22, struct.pack("B", rule.protocol))
    if rule.port is not None:
        body += _attribute(24, struct.pack("HH", rule.port, rule.port))
    return _message(_NEW_RULE, body)


def send(messages: bytes) -> None:
    """Send messages to the kernel, in the namespace of this thread.

    Raises `OSError`: the kernel refused one; the others were carried out.
    """
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as kernel:
        # It answers what it refuses, and the last.
        kernel.send(messages + _HEADER.pack(_HEADER.size, _NOTHING, _REQUEST | _ACKNOWLEDGE, 0, 0))
        answer = kernel.recv(8192)
    kind, code = struct.unpack_from("H", answer, 4)[0], struct.unpack_from("i", answer, _HEADER.size)[0]
    if kind != _ERROR or code:
        code = -code if kind == _ERROR else errno.EPROTO
        raise OSError(code, os.strerror(code))


def _link(index: int, *, up: bool) -> bytes:
    return struct.pack("BxHiII", socket.AF_UNSPEC, 0, index, _UP if up else 0, _UP if up else 0)


def _attribute(kind: int, value: bytes) -> bytes:
    return struct.pack("HH", 4 + len(value), kind) + value + b"\0" * (-len(value) % 4)


def _message(kind: int, body: bytes, *, create: bool = True) -> bytes:
    flags = _REQUEST | (_CREATE | _EXCLUSIVE if create else 0)
    return _HEADER.pack(_HEADER.size + len(body), kind, flags, 0, 0) + body
