"""Host names in the form in which browsers compare them when they choose cookies."""

import ipaddress
import socket

EVERY_ADDRESS = frozenset({"0.0.0.0", "::"})  # noqa: S104 - compared with, not bound to


def canonical_host(name: str) -> str:
    """Normalize a host name: lower case; `127.1`, `0x7f.1` and `2130706433` are `127.0.0.1`."""
    name = name.lower().strip("[]").rstrip(".")
    try:
        return socket.inet_ntoa(socket.inet_aton(name))
    except OSError:
        pass
    try:
        return str(ipaddress.ip_address(name))
    except ValueError:
        return name


def is_loopback(name: str) -> bool:
    """Return whether a host name leads to the machine of whoever uses it."""
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return name == "localhost"
