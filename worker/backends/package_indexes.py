"""The package indexes and proxies that this host is configured with: they are reached from where packages are built.

A job's network has no way to this host itself. Where such a server runs on it, the worker passes connections on: it
listens at the same address and port in the network of the job.
"""

import os
import re
import socket
import threading
from contextlib import suppress
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import psutil
from cachetools import TTLCache, cached

from worker.backends.port_forwarder import Forward
from worker.sandbox.network_namespace import listen

CONFIGURED = re.compile(r"(UV_\w+|(ALL|HTTPS?|NO)_PROXY|SSL_CERT_(FILE|DIR))\Z", re.IGNORECASE)
"""Names of variables of the worker that configure its package index."""

_URL = re.compile(r"https?://[^\s\"',;]+")
_FOLDER = re.compile(r"(?:file://)?(/[^\s\"',;]+)")
_PIP = re.compile(r"PIP_\w*(INDEX|LINKS|PROXY)\w*\Z")
_FOLDERS = re.compile(r"(UV|PIP)_\w*(INDEX|LINKS)\w*\Z")
_KEPT_SECONDS = 60.0
_PORTS = {"http": 80, "https": 443}


class Address(NamedTuple):
    host: str
    port: int


def configuration_folders() -> list[str]:
    home = os.environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    return ["/etc/uv", f"{home}/uv"]


def index_folders() -> list[str]:
    values = (value for name, value in os.environ.items() if _FOLDERS.match(name))
    return [path for value in values for path in _FOLDER.findall(re.sub(r"https?://\S+", "", value))]


def configured_addresses() -> dict[Address, bool]:
    """Return the addresses of indexes and proxies; with each, whether it is one of this host's own."""
    names = (name for name in os.environ if CONFIGURED.match(name) or _PIP.match(name))
    texts = [os.environ[name] for name in names]
    for path in ("/etc/pip.conf", *(f"{folder}/uv.toml" for folder in configuration_folders())):
        with suppress(OSError):
            texts.append(Path(path).read_text(encoding="utf-8", errors="replace"))
    return _addresses_in("\n".join(texts))


@cached(TTLCache(8, _KEPT_SECONDS), lock=threading.Lock())
def _addresses_in(text: str) -> dict[Address, bool]:
    addresses: dict[Address, bool] = {}
    for url in dict.fromkeys(_URL.findall(text)):
        with suppress(ValueError):
            parts = urlsplit(url)
            for address in resolve(parts.hostname or "", parts.port or _PORTS[parts.scheme]):
                addresses[address] = is_own(address)
    return addresses


def resolve(host: str, port: int) -> list[Address]:
    """Return the IPv4 addresses of a host; none if it has no name here."""
    try:
        answers = socket.getaddrinfo(host, port, socket.AF_INET, socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return []
    return [Address(str(answer[-1][0]), port) for answer in answers]


def is_own(address: Address) -> bool:
    host_addresses = {
        address_found.address for interface in psutil.net_if_addrs().values() for address_found in interface
    }
    return ip_address(address.host).is_loopback or address.host in host_addresses


def pass_on(first: int, address: Address) -> Forward:
    """Pass connections of a sandbox, by its first process, on to a server of this host.

    Raises `OSError`: the address is taken there, or the sandbox has ended.
    """
    forward = Forward(listen(first, *address), partial(socket.create_connection, address, 10.0))
    threading.Thread(target=forward.run, name="index", daemon=True).start()
    return forward
