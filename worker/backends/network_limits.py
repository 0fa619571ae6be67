"""Addresses that jobs must not reach, as rules of their networks, and the program that sets this host's firewall."""

import fcntl
import ipaddress
import logging
import shutil
import socket
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, collapse_addresses, ip_address, ip_network
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

from core.settings import Settings
from worker.backends.package_indexes import Address, is_own, resolve
from worker.sandbox.packet_filter import Rule

logger = logging.getLogger(__name__)

METADATA = ("169.254.0.0/16", "100.100.100.200/32", "168.63.129.16/32", "192.0.0.192/32")
"""Link-local addresses, with the metadata of most clouds and other services without authentication, and the metadata of
Alibaba Cloud, Azure and Oracle Cloud."""
METADATA_6 = ("fe80::/10", "fd00:ec2::/32", "fd20:ce::/32", "fd00:c1::/32", "fd00:42::/32")
"""IPv6: link-local addresses, and the metadata services of Amazon, Google, Oracle Cloud and Scaleway."""

_EVERYWHERE = "00000000"
_INTERFACES = Path("/sys/class/net")
_ROUTES = Path("/proc/net/fib_trie")
_ALLOWED, _REFUSED, _OPEN, _CLOSED = 10, 20, 30, 40  # order of rules
JOBS_SUBNET = "198.19.0.0/16"
_NEVER = ("0.0.0.0/8", "127.0.0.0/8", *METADATA, JOBS_SUBNET, "224.0.0.0/3")
"""Addresses that no job reaches: this host, its neighbours, other jobs, multicast and broadcast, and the metadata of
clouds, which has their credentials."""
_PRIVATE = ("10.0.0.0/8", "100.64.0.0/10", "172.16.0.0/12", "192.168.0.0/16")
_DNS = 53
_IPTABLES_SECONDS = 15
FIREWALL_LOCK = Path("/run/gradient-jobs-firewall.lock")
_RESOLV_CONF = (Path("/etc/resolv.conf"), Path("/run/systemd/resolve/resolv.conf"))
_PORTS = {"postgresql": 5432, "postgres": 5432, "redis": 6379, "rediss": 6379, "amqp": 5672, "http": 80, "https": 443}


class FirewallUnavailable(Exception):
    """The firewall rules could not be set."""


def run_iptables(program: str, *arguments: str, given: str = "") -> None:
    """Run `iptables` or one of its kin. Raises `FirewallUnavailable`: it is missing or failed."""
    path = shutil.which(program) or shutil.which(program, path="/usr/sbin:/sbin")
    if path is None:
        raise FirewallUnavailable(f"{program} is not installed")
    run_firewall_command([path, *arguments], given)


def run_firewall_command(command: Sequence[str], given: str = "") -> None:
    """Run a command that sets this host's firewall. Raises `FirewallUnavailable`: it failed."""
    program = command[0]
    try:
        with ExitStack() as stack:
            # Of several commands at once, each starts over when another one is done: on a busy host for minutes.
            with suppress(OSError):  # a worker that may not write there
                fcntl.flock(stack.enter_context(FIREWALL_LOCK.open("a")), fcntl.LOCK_EX)
            done = subprocess.run(  # noqa: S603 - rules of our own making
                command,
                input=given,
                capture_output=True,
                text=True,
                timeout=_IPTABLES_SECONDS,
                check=False,
            )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise FirewallUnavailable(f"{program}: {error}") from error
    if done.returncode != 0:
        raise FirewallUnavailable(f"{program}: {done.stderr.strip()}")


def resolvers(files: Iterable[Path] = _RESOLV_CONF) -> list[str]:
    """Return the DNS servers of this host's containers: the host's own, except loopback ones, which Docker queries."""
    servers: dict[str, None] = {}
    for file in files:
        if file.is_file():
            servers |= dict.fromkeys(_servers_in(file.read_text(errors="replace")))
    return list(servers)


@lru_cache(8)
def _servers_in(text: str) -> tuple[str, ...]:
    named = [fields[1] for fields in map(str.split, text.splitlines()) if fields[:1] == ["nameserver"] and fields[1:]]
    return tuple(server for server in named if _is_address(server) and not ipaddress.ip_address(server).is_loopback)


def inner_bridges() -> list[str]:
    """Return the bridges of this host to containers and virtual machines: all but that of its own default route."""
    outer = _default_interfaces("self")
    return sorted({path.parent.name for path in _INTERFACES.glob("*/bridge")} - outer)


def has_default_route(pid: int) -> bool:
    return bool(_default_interfaces(str(pid)))


def _default_interfaces(process: str) -> set[str]:
    return {name for name, destination, *_ in _read_routes(process) if destination == _EVERYWHERE}


def _read_routes(process: str) -> list[list[str]]:
    return [line.split() for line in Path(f"/proc/{process}/net/route").read_text(encoding="ascii").splitlines()[1:]]


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return "%" not in text  # a link-local address with a zone, which no container has


def service_addresses(settings: Settings) -> Iterable[tuple[str, int]]:
    """Return (address, port) of the database, the broker and the API, except on loopback."""
    return _resolve((settings.database.url, settings.queue.broker_url, settings.api.public_url))


def _resolve(urls: Iterable[str | None]) -> Iterable[tuple[str, int]]:
    addresses: dict[tuple[str, int], None] = {}
    for url in urls:
        parts = urlsplit(url or "")
        port = parts.port or _PORTS.get(parts.scheme.partition("+")[0])
        if parts.hostname is None or port is None:
            continue
        try:
            resolved = socket.getaddrinfo(parts.hostname, port, type=socket.SOCK_STREAM)
        except OSError:
            logger.warning("address_unknown", extra={"host": parts.hostname})
            continue
        for address in {str(answer[-1][0]).partition("%")[0] for answer in resolved}:
            if not ipaddress.ip_address(address).is_loopback:
                addresses[address, port] = None
    return addresses


def find_limits(
    settings: Settings, servers: Iterable[str], indexes: Iterable[tuple[str, int]] = (), *, shared: bool
) -> list[Rule]:
    """Return the rules that refuse a job what it must not reach, but not its DNS servers and package indexes.

    `shared`: also refuse private addresses, but those of GRADIENT_EGRESS__ALLOWED.
    """
    rules = [
        Rule(_ALLOWED, IPv4Network(server), protocol, _DNS, refused=False)
        for server in servers
        for protocol in (socket.IPPROTO_UDP, socket.IPPROTO_TCP)
    ]
    rules += [
        Rule(_ALLOWED, IPv4Network(address), socket.IPPROTO_TCP, port, refused=False) for address, port in indexes
    ]
    blocked = (ip_network(network, strict=False) for network in settings.docker.blocked)
    refused = [
        *map(IPv4Network, _NEVER),
        *_host_networks(),
        *(network for network in blocked if isinstance(network, IPv4Network)),
    ]
    rules += [Rule(_REFUSED, network) for network in collapse_addresses(refused)]
    if shared:
        rules += _close_private(settings)
    services = ((ip_network(address), port) for address, port in service_addresses(settings))
    return rules + [
        Rule(_REFUSED, address, socket.IPPROTO_TCP, port)
        for address, port in services
        if isinstance(address, IPv4Network)
    ]


def _host_networks() -> Iterator[IPv4Network]:
    """Yield what this host takes for its own, broadcasts too, and the networks behind its bridges."""
    address = ""
    for columns in map(str.split, _ROUTES.read_text(encoding="ascii").splitlines()):
        if columns[0] == "|--":
            address = columns[1]
        elif columns[0].startswith("/") and columns[2] in {"LOCAL", "BROADCAST"}:
            yield IPv4Network(f"{address}{columns[0]}")
    bridges = inner_bridges()
    for name, destination, _, _, _, _, _, mask, *_ in _read_routes("self"):
        if name in bridges:
            yield IPv4Network("/".join(str(IPv4Address(bytes.fromhex(number)[::-1])) for number in (destination, mask)))


def _close_private(settings: Settings) -> list[Rule]:
    allowed = [entry if "/" in entry else f"https://{entry}" for entry in settings.egress.allowed]
    addresses = [address for address, _ in _resolve(entry for entry in allowed if "://" in entry)]
    networks = (
        ip_network(network, strict=False)
        for network in (*addresses, *(entry for entry in allowed if "://" not in entry))
    )
    rules = [Rule(_OPEN, network, refused=False) for network in networks if isinstance(network, IPv4Network)]
    return rules + [Rule(_CLOSED, IPv4Network(network)) for network in _PRIVATE]


def allowed_servers_here(settings: Settings, url: SplitResult) -> list[Address]:
    """Return the addresses of a URL's server that are this host's own and that GRADIENT_EGRESS__ALLOWED names."""
    allowed = settings.egress.allowed
    return [
        address
        for address in resolve(url.hostname or "", url.port or _PORTS[url.scheme])
        if is_own(address) and (url.hostname in allowed or any(_is_in(address.host, network) for network in allowed))
    ]


def _is_in(address: str, network: str) -> bool:
    try:
        return ip_address(address) in ip_network(network, strict=False)
    except ValueError:  # a name
        return False
