import ipaddress

from starlette.types import Scope

METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
"""Known methods; any other is counted as one."""

_UNMATCHED = "none"


def route_pattern(scope: Scope) -> str:
    """Return the pattern of a request's route, not its path: the number of patterns is limited."""
    return str(getattr(scope.get("route"), "path", _UNMATCHED))


def client_network(host: str | None) -> str:
    """Return the name that a client's limits are counted by: its IPv4 address, or its IPv6 /64 network.

    An IPv6 client usually controls its whole /64.
    """
    try:
        address = ipaddress.ip_address(host or "")
    except ValueError:
        return host or ""
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    return str(address.ipv4_mapped or ipaddress.ip_network((address, 64), strict=False))
