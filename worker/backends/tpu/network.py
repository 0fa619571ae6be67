"""The network of new TPU nodes, as Google's Compute Engine API describes it; reads only."""

from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import IPv4Network, ip_network
from typing import Any

import requests
from google.auth.exceptions import GoogleAuthError
from google.auth.transport.requests import AuthorizedSession

from core.errors import GradientError
from core.settings import Settings
from core.storage.gcs.client import open_credentials
from worker.backends.tpu import times

_API = "https://compute.googleapis.com/compute/v1/"
_INTERNET = ip_network("0.0.0.0/0")
_TCP = frozenset({"tcp", "6", "all"})
_NOT_FOUND = 404


class NetworkUnreadable(GradientError):
    """Compute Engine does not answer, or refuses to describe the network."""


@dataclass(frozen=True, slots=True)
class FirewallRule:
    """A firewall rule that applies to nodes and to TCP.

    `by_identity`: it also names the other side by network tag or service account, which addresses do not tell.
    """

    name: str
    priority: int
    allows: bool
    ranges: tuple[IPv4Network, ...]
    by_identity: bool
    ports: tuple[tuple[int, int], ...]

    def covers(self, port: int, other: IPv4Network) -> bool:
        """Return whether it decides for this port and all of these addresses."""
        return self.has_port(port) and any(other.subnet_of(network) for network in self.ranges)

    def has_port(self, port: int) -> bool:
        return any(first <= port <= last for first, last in self.ports)


@dataclass(frozen=True, slots=True)
class Subnetwork:
    """The subnetwork of nodes in one region.

    `google_access`: machines without an external address reach Google's APIs (Private Google Access).
    """

    name: str
    addresses: IPv4Network
    google_access: bool
    nat: bool


class NodeNetwork:
    """See the module. Every method raises NetworkUnreadable.

    `settings`: the service's; they name project, network, tags and service account of new nodes.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = tpu = settings.tpu
        name = tpu.network or "default"
        self.path = name if name.startswith("projects/") else f"projects/{tpu.project}/global/networks/{name}"
        self._project = self.path.split("/")[1]
        credentials, _ = open_credentials(settings.gcs)
        self._session = AuthorizedSession(credentials)

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]

    def exists(self) -> bool:
        return self._get(self.path) is not None

    def ingress(self) -> list[FirewallRule]:
        """Return the rules for connections to nodes; the first that covers a connection decides."""
        return self._rules("INGRESS", "source")

    def egress(self) -> list[FirewallRule]:
        return self._rules("EGRESS", "destination")

    def has_internet_route(self) -> bool:
        """Return whether a route leads from the network to the Internet, and to Google's APIs."""
        return any(
            route.get("destRange") == "0.0.0.0/0"
            and route.get("nextHopGateway", "").endswith("/default-internet-gateway")
            for route in self._list("global/routes")
        )

    def subnetwork(self, region: str) -> Subnetwork | None:
        wanted = (self._settings.subnetwork or "").rpartition("/")[2]
        subnetworks = [
            subnetwork
            for subnetwork in self._list(f"regions/{region}/subnetworks")
            if wanted in {"", subnetwork["name"]}
        ]
        if not subnetworks:
            return None
        nat = any(router.get("nats") for router in self._list(f"regions/{region}/routers"))
        first = subnetworks[0]
        addresses = IPv4Network(first["ipCidrRange"])
        return Subnetwork(first["name"], addresses, bool(first.get("privateIpGoogleAccess")), nat)

    def _rules(self, direction: str, other: str) -> list[FirewallRule]:
        rules = []
        for firewall in self._list("global/firewalls"):
            entries = [
                entry
                for entry in firewall.get("allowed") or firewall.get("denied") or ()
                if entry["IPProtocol"] in _TCP
            ]
            if (
                firewall["direction"] != direction
                or firewall.get("disabled")
                or not entries
                or not self._is_for_nodes(firewall)
            ):
                continue
            ranges = firewall.get(f"{other}Ranges", [])
            by_identity = bool(firewall.get("sourceTags") or firewall.get("sourceServiceAccounts"))
            rules.append(
                FirewallRule(
                    name=firewall["name"],
                    priority=firewall["priority"],
                    allows="allowed" in firewall,
                    ranges=tuple(IPv4Network(network) for network in ranges if ":" not in network)
                    or (() if by_identity or ranges else (IPv4Network(_INTERNET),)),
                    by_identity=by_identity,
                    ports=tuple(_parse_ports(text) for entry in entries for text in entry.get("ports") or ["0-65535"]),
                )
            )
        return sorted(
            rules, key=lambda rule: (rule.priority, rule.allows)
        )  # of equal ones, the one that denies decides

    def _is_for_nodes(self, rule: dict[str, Any]) -> bool:
        tags, accounts = rule.get("targetTags", ()), rule.get("targetServiceAccounts", ())
        if not tags and not accounts:
            return True
        return bool(set(tags) & set(self._settings.tags)) or self._settings.service_account in accounts

    def _list(self, path: str) -> Iterator[dict[str, Any]]:
        token = ""
        while True:
            page = self._get(f"projects/{self._project}/{path}", {"pageToken": token} if token else {}) or {}
            yield from (item for item in page.get("items", ()) if item["network"].endswith(f"/{self.path}"))
            token = page.get("nextPageToken", "")
            if not token:
                return

    def _get(self, path: str, query: dict[str, str] | None = None) -> dict[str, Any] | None:
        try:
            answer = self._session.get(_API + path, params=query, timeout=times.TIMEOUT_SECONDS)
            value: dict[str, Any] = answer.json()
        except (GoogleAuthError, requests.RequestException, ValueError) as error:
            raise NetworkUnreadable(f"compute.googleapis.com does not answer: {error}") from error
        if answer.status_code == _NOT_FOUND:
            return None
        if not answer.ok:
            raise NetworkUnreadable(str(value.get("error", {}).get("message") or f"HTTP {answer.status_code}"))
        return value


def _parse_ports(text: str) -> tuple[int, int]:
    first, _, last = text.partition("-")
    return int(first), int(last or first)
