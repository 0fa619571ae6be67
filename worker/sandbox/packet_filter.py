"""The packet filter of a job's network, as messages to the kernel (nf_tables): `nft` or `iptables` is a process more.

It decides by a packet's addresses, after its route was chosen, so that no option of a socket passes it. A job cannot
change it: it has no capability in the user namespace that owns its network.
"""

import socket
import struct
from collections.abc import Iterable
from ipaddress import IPv4Network
from typing import NamedTuple

from worker.sandbox.netlink import ACKNOWLEDGE, CREATE, attribute, message

_TABLE, _REFUSE = b"gradient\0", b"refuse\0"
_SUBSYSTEM, _BATCH_BEGIN, _BATCH_END = 10, 0x10, 0x11
_NEW_TABLE, _NEW_CHAIN, _NEW_RULE, _DELETE_RULES = 0, 3, 6, 8
_INET, _IPV4 = 1, 2  # families of netfilter
_APPEND = 0x800
_DROP, _ACCEPT, _GOTO = 0, 1, -4
_INPUT, _FORWARD, _OUTPUT = b"input\0", b"forward\0", b"output\0"
_HOOKS = {_INPUT: 1, _FORWARD: 2, _OUTPUT: 3}
_VALUE, _NESTED = 1, 0x8000
_NETWORK_HEADER, _TRANSPORT_HEADER = 1, 2
_IN_INTERFACE, _OUT_INTERFACE, _FAMILY, _PROTOCOL = 4, 5, 15, 16
_REPLIES = 6  # bits of the states established and related
_EQUAL, _NOT_EQUAL = 0, 1
_LOOPBACK = struct.pack("I", 1)  # number of the interface `lo` in every network


class Rule(NamedTuple):
    """Refuses or allows packets to addresses, perhaps only of one protocol to one port."""

    order: int
    to: IPv4Network
    protocol: int | None = None
    port: int | None = None
    refused: bool = True


def make_filter(rules: Iterable[Rule]) -> bytes:
    """Return the messages that set or replace the filter, all or nothing: the first rule that fits decides.

    Everything passes within the network, nothing but replies comes in, and nothing is forwarded. A packet out that no
    rule fits passes if it is IPv4.
    """
    table = attribute(1, _TABLE)
    lines = [_batch(_BATCH_BEGIN)]
    lines += [_message(_NEW_TABLE, table), _message(_NEW_CHAIN, table + attribute(3, _REFUSE))]
    for chain, number in _HOOKS.items():
        hook = _nested(4, _number(1, number) + _number(2, 0)) + _number(5, _DROP) + attribute(7, b"filter\0")
        lines.append(_message(_NEW_CHAIN, table + attribute(3, chain) + hook))
    lines.append(_message(_DELETE_RULES, table))
    replies = _expression("ct", _number(1, 1) + _number(2, 0)) + _mask(struct.pack("I", _REPLIES))
    accept = _decide(_ACCEPT)
    lines += [
        _rule(_INPUT, _meta(_IN_INTERFACE, _LOOPBACK) + accept),
        _rule(_INPUT, replies + _compare(bytes(4), _NOT_EQUAL) + accept),
        _rule(_OUTPUT, _meta(_OUT_INTERFACE, _LOOPBACK) + accept),
        _rule(_OUTPUT, _meta(_FAMILY, bytes([_IPV4]), _NOT_EQUAL) + _decide(_DROP)),
        # A reset ends the attempt to connect at once; others fail with what the kernel returns for a dropped packet.
        _rule(_REFUSE, _meta(_PROTOCOL, bytes([socket.IPPROTO_TCP])) + _expression("reject", _number(1, 1))),
        _rule(_REFUSE, _decide(_DROP)),
        *(_rule(_OUTPUT, _conditions(rule)) for rule in sorted(rules, key=lambda rule: rule.order)),
        _rule(_OUTPUT, accept, ACKNOWLEDGE),
    ]
    return b"".join([*lines, _batch(_BATCH_END)])


def _conditions(rule: Rule) -> bytes:
    network = _mask(rule.to.netmask.packed) + _compare(rule.to.network_address.packed)
    conditions = _payload(_NETWORK_HEADER, 16, 4) + network
    if rule.protocol is not None:
        conditions += _meta(_PROTOCOL, bytes([rule.protocol]))
    if rule.port is not None:
        conditions += _payload(_TRANSPORT_HEADER, 2, 2) + _compare(struct.pack("!H", rule.port))
    return conditions + _decide(_GOTO if rule.refused else _ACCEPT)


def _rule(chain: bytes, expressions: bytes, flags: int = 0) -> bytes:
    attributes = attribute(1, _TABLE) + attribute(2, chain) + _nested(4, expressions)
    return _message(_NEW_RULE, attributes, CREATE | _APPEND | flags)


def _meta(key: int, value: bytes, comparison: int = _EQUAL) -> bytes:
    return _expression("meta", _number(1, 1) + _number(2, key)) + _compare(value, comparison)


def _payload(header: int, offset: int, size: int) -> bytes:
    return _expression("payload", _number(1, 1) + _number(2, header) + _number(3, offset) + _number(4, size))


def _mask(bits: bytes) -> bytes:
    values = _nested(4, attribute(_VALUE, bits)) + _nested(5, attribute(_VALUE, bytes(len(bits))))
    return _expression("bitwise", _number(1, 1) + _number(2, 1) + _number(3, len(bits)) + values)


def _compare(value: bytes, comparison: int = _EQUAL) -> bytes:
    return _expression("cmp", _number(1, 1) + _number(2, comparison) + _nested(3, attribute(_VALUE, value)))


def _decide(code: int) -> bytes:
    decision = _number(1, code & 0xFFFFFFFF) + (attribute(2, _REFUSE) if code == _GOTO else b"")
    return _expression("immediate", _number(1, 0) + _nested(2, _nested(2, decision)))


def _expression(name: str, data: bytes) -> bytes:
    return _nested(1, attribute(1, name.encode() + b"\0") + _nested(2, data))


def _number(kind: int, value: int) -> bytes:
    return attribute(kind, struct.pack("!I", value))


def _nested(kind: int, attributes: bytes) -> bytes:
    return attribute(kind | _NESTED, attributes)


def _batch(kind: int) -> bytes:
    return message(kind, struct.pack("!BBH", 0, 0, _SUBSYSTEM))


def _message(kind: int, attributes: bytes, flags: int = CREATE) -> bytes:
    return message(_SUBSYSTEM << 8 | kind, struct.pack("!BBH", _INET, 0, 0) + attributes, flags)
