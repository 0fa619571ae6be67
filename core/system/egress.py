"""The egress policy: addresses named by users that this service may connect to (git servers, registries).

Addresses that are not public are refused, in every spelling and also behind a name, unless an administrator allowed
them (GRADIENT_EGRESS__ALLOWED). A name is resolved only once, and the connection goes to the checked
address, so that changing the name's address in between (DNS rebinding) has no effect.
"""

import ipaddress
import re
import socket
import unicodedata
from urllib.parse import urlsplit

from core.catalogue.registry_hosts import DOCKER_HUB, registry_host
from core.errors import EgressRefused
from core.settings.network import EgressSettings

SETTING = "GRADIENT_EGRESS__ALLOWED"

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

_PORTS = {"https": 443, "http": 80}
_PUBLIC_V6 = ipaddress.ip_network("2000::/3")
_NAT64 = (ipaddress.ip_network("64:ff9b::/96"), ipaddress.ip_network("64:ff9b:1::/48"))
_IPV4_COMPATIBLE = ipaddress.ip_network("::/96")
_NOT_PUBLIC = tuple(
    ipaddress.ip_network(one)
    for one in (
        "168.63.129.16/32",  # metadata of Azure's virtual machines
        "192.0.0.0/24",  # IETF protocol assignments, and metadata of Oracle's virtual machines
        "192.88.99.0/24",  # 6to4 relays
    )
)
_NAME = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]{0,251}[A-Za-z0-9_])?\Z")
_NOT_ASCII = re.compile(
    # Any character except the invisible ones: programs that connect drop these (UTS 46), so they may hide an address.
    r"[^\x00-\x7f\xad\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufe00-\ufe0f\ufeff"
    r"\U000e0000-\U000e0fff]"
)
_LOCAL_NAMES = ("localhost", "localhost.localdomain", "ip6-localhost", "ip6-loopback")


class Egress:
    def __init__(self, settings: EgressSettings) -> None:
        self._schemes = settings.schemes
        self._names: set[str] = set()
        self._networks: list[ipaddress.IPv4Network | ipaddress.IPv6Network] = []
        for one in settings.allowed:
            try:
                self._networks.append(ipaddress.ip_network(one.strip("[]"), strict=False))
            except ValueError:
                self._names.add(_normalize_host(one))

    def check_url(self, url: str, field: str) -> tuple[str, int]:
        """Refuse a URL by its scheme and host, without resolving a name. Returns host and port."""
        if not url.isprintable() or " " in url or "\\" in url:
            # urlsplit passes over some of these, and programs that connect read them in other ways.
            raise EgressRefused("Not a URL: it has a space, a backslash or a control character.", field=field)
        try:
            parts = urlsplit(url)
            host, port = parts.hostname or "", parts.port
        except ValueError:
            raise EgressRefused("Not a URL: its host or port cannot be read.", field=field) from None
        if parts.scheme not in self._schemes:
            opened = " and ".join(f"{one}://" for one in self._schemes)
            raise EgressRefused(
                f"{parts.scheme}:// is not allowed here, only {opened}. Use one of these, or have an administrator "
                "allow http:// with GRADIENT_EGRESS__SCHEMES.",
                field=field,
            )
        self.check_host(host, field)
        return host, port or _PORTS[parts.scheme]

    def check_host(self, host: str, field: str) -> None:
        """Refuse a host that is a non-public address, in any spelling, or a name of this machine."""
        plain = _normalize_host(host)
        if plain in self._names:
            return
        address = parse_ip(plain)
        if address is not None:
            self._check_address(address, host, field)
        elif plain in _LOCAL_NAMES or plain.endswith(".localhost"):
            raise _refused(host, "this machine itself", field)
        elif not _NAME.match(_NOT_ASCII.sub("a", plain)):
            raise EgressRefused(f"{host[:80]!r} is not the name or address of a host.", field=field)

    def resolve(self, host: str, port: int, field: str) -> list[tuple[str, int]]:
        self.check_host(host, field)
        plain = _normalize_host(host)
        try:
            found = socket.getaddrinfo(plain, port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            raise EgressRefused(f"The name {host[:80]!r} cannot be resolved here.", field=field) from error
        addresses = list(dict.fromkeys(str(one[4][0]) for one in found))
        if plain not in self._names:
            for one in addresses:
                self._check_address(ipaddress.ip_address(one), host, field)
        return [(one, port) for one in addresses]

    def check_image(self, reference: str, field: str) -> None:
        """Refuse an image whose registry's host `check_host` refuses."""
        registry = registry_host(reference)
        if registry != DOCKER_HUB:
            self.check_host(strip_port(registry), field)

    def resolve_image(self, reference: str, field: str) -> None:
        """Refuse an image whose registry has an address that may not be connected to."""
        host = strip_port(registry_host(reference))
        if host != DOCKER_HUB and _normalize_host(host) not in self._names:
            self.resolve(host, _PORTS["https"], field)

    def _check_address(self, address: Address, host: str, field: str) -> None:
        if any(address in network for network in self._networks):
            return
        inner = _embedded(address)
        if inner is not None:
            self._check_address(inner, host, field)
        elif not _is_public(address):
            raise _refused(host, "an address that is not public", field)


def strip_port(registry: str) -> str:
    return registry if registry.endswith("]") else re.sub(r":[0-9]+\Z", "", registry)


def parse_ip(host: str) -> Address | None:
    """Parse a host as an address in any spelling: dotted, decimal, octal, hexadecimal or IPv6; None if it is a name."""
    try:
        return ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        pass
    try:
        return ipaddress.IPv4Address(socket.inet_aton(host))
    except (OSError, UnicodeError):
        return None


def _normalize_host(host: str) -> str:
    # The ideographic full stop separates labels, too (IDNA); this normalization maps the other two full stops.
    mapped = unicodedata.normalize("NFKC", host).replace("\u3002", ".")
    return mapped.strip("[]").rstrip(".").lower()


def _embedded(address: Address) -> ipaddress.IPv4Address | None:
    if isinstance(address, ipaddress.IPv4Address):
        return None
    if any(address in network for network in (*_NAT64, _IPV4_COMPATIBLE)) and int(address) > 1:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    teredo = address.teredo
    return address.ipv4_mapped or address.sixtofour or (teredo[1] if teredo else None)


def _is_public(address: Address) -> bool:
    if isinstance(address, ipaddress.IPv6Address) and address not in _PUBLIC_V6:
        return False
    return address.is_global and not address.is_multicast and not any(address in one for one in _NOT_PUBLIC)


def _refused(host: str, what: str, field: str) -> EgressRefused:
    return EgressRefused(
        f"{host[:80]!r} is {what}, which this service does not connect to for users. An administrator may allow it "
        f"with {SETTING}.",
        field=field,
    )
