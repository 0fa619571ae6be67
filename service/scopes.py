"""What a request's ASGI scope says of it."""

import ipaddress

from starlette.types import Scope

METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
"""Others are made up."""

_UNMATCHED = "none"


def route_of(scope: Scope) -> str:
    """The pattern of the route that serves a request: there are few of them, and endlessly many paths."""
    return str(getattr(scope.get("route"), "path", _UNMATCHED))


def client_name(host: str | None) -> str:
    """The name that a client's limits are counted by: its address, or its network if that is of IPv6.

    Whoever has one IPv6 address has all of its /64.
    """
    try:
        address = ipaddress.ip_address(host or "")
    except ValueError:
        return host or ""
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    return str(address.ipv4_mapped or ipaddress.ip_network((address, 64), strict=False))
