"""The check of outgoing addresses: who may save a receiver must not reach the service's own network with it."""

import socket
from collections.abc import Sequence
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

from core.errors import SpecInvalid

_TRANSLATED = ip_network("64:ff9b::/96")  # NAT64: the last 32 bits are an IPv4 address


def resolve(host: str, port: int, allowed: Sequence[str]) -> str:
    """Return an address of a host; refuse it if one is not public, unless host or network is `allowed`.

    Raises `OSError`: the host has no address.
    """
    addresses = [info[4][0] for info in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]
    for address in addresses:
        if host.casefold() in {name.casefold() for name in allowed} or _is_allowed(str(address), allowed):
            continue
        raise SpecInvalid(
            f"{host} has the address {address}, which is not public. The service's operator can allow it with "
            "GRADIENT_NOTIFICATIONS__ALLOWED.",
            field="url",
        )
    return str(addresses[0])


def _is_allowed(text: str, allowed: Sequence[str]) -> bool:
    address = _embedded(ip_address(text.partition("%")[0]))
    return (address.is_global and not address.is_multicast) or any(
        address in ip_network(network, strict=False) for network in allowed if _is_network(network)
    )


def _embedded(address: IPv4Address | IPv6Address) -> IPv4Address | IPv6Address:
    """Return the IPv4 address that an IPv6 address leads to, if it is of such a kind."""
    if isinstance(address, IPv4Address):
        return address
    if address in _TRANSLATED:
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour or (address.teredo[1] if address.teredo else address)


def _is_network(text: str) -> bool:
    try:
        ip_network(text, strict=False)
    except ValueError:
        return False
    return True
