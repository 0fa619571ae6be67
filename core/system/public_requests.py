"""Requests to hosts that a user names: they must not reach the service's own network."""

import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from ipaddress import IPv4Address, ip_address, ip_network
from urllib.parse import urlsplit

import urllib3

from core.errors import SpecInvalid

_TRANSLATED = ip_network("64:ff9b::/96")  # NAT64: the last 32 bits are an IPv4 address


@contextmanager
def open_public(
    method: str,
    url: str,
    headers: Mapping[str, str],
    body: bytes | None = None,
    *,
    allowed: Sequence[str],
    setting: str,  # that has them
    timeout: urllib3.Timeout,
) -> Iterator[urllib3.BaseHTTPResponse]:
    """Make a request to the address that was checked: the name may resolve to another one the next time.

    Redirects are not followed. Raises `SpecInvalid`: see `resolve`; `OSError`: the host has no address.
    """
    parts = urlsplit(url)
    host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
    address, tls = resolve(host, port, allowed, setting), {"server_hostname": host, "assert_hostname": host}
    origin = f"{parts.scheme}://{f'[{address}]' if ':' in address else address}:{port}"
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    with urllib3.connection_from_url(origin, timeout=timeout, **(tls if parts.scheme == "https" else {})) as pool:
        answer = pool.urlopen(
            *(method, path, body, {"Host": parts.netloc.rpartition("@")[2], **headers}),
            retries=False,
            redirect=False,
            preload_content=False,
            assert_same_host=False,
        )
        try:
            yield answer
        finally:
            answer.close()


def resolve(host: str, port: int, allowed: Sequence[str], setting: str) -> str:
    """Return an address of a host; refuse it if one is not public, unless host or network is `allowed`.

    Raises `OSError`: the host has no address.
    """
    addresses = [str(info[4][0]) for info in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]
    for address in addresses:
        if host.casefold() not in map(str.casefold, allowed) and not _is_allowed(address, allowed):
            raise SpecInvalid(
                f"{host} has the address {address}, which is not public. The service's operator can allow it with "
                f"{setting}.",
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
