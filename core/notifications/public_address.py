"""The check of outgoing addresses: who may save a receiver must not reach the service's own network with it."""

import socket
from collections.abc import Sequence
from contextlib import suppress
from ipaddress import IPv4Address, ip_address, ip_network

from core.errors import SpecInvalid

_TRANSLATED = ip_network("64:ff9b::/96")  # NAT64: the last 32 bits are an IPv4 address


def resolve(host: str, port: int, allowed: Sequence[str]) -> str:
    """Return an address of a host; refuse it if one is not public, unless host or network is `allowed`.

    Raises `OSError`: the host has no address.
    """
    addresses = [str(info[4][0]) for info in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]
    for address in addresses:
        if host.casefold() not in map(str.casefold, allowed) and not _is_allowed(address, allowed):
            raise SpecInvalid(
                f"{host} has the address {address}, which is not public. The service's operator can allow it with "
                "GRADIENT_NOTIFICATIONS__ALLOWED.",
                field="url",
            )
    return addresses[0]


def _is_allowed(text: str, allowed: Sequence[str]) -> bool:
    address = ip_address(text.partition("%")[0])
    if address in _TRANSLATED:
        address = IPv4Address(int(address) & 0xFFFFFFFF)
    address = getattr(address, "ipv4_mapped", None) or address
    if address.is_global and not address.is_multicast:
        return True
    for network in allowed:
        with suppress(ValueError):  # it is the name of a host
            if address in ip_network(network, strict=False):
                return True
    return False
