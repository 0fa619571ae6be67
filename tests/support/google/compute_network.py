"""Compute Engine's API, version 1, as far as it describes a network: the default one of a new project."""

from typing import Any

from gradient_server.simulator.gcs.api import StorageRequest, StorageResponse, json_response
from gradient_server.simulator.gcs.objects import StorageError

_PAGE = 3
_URL = "https://www.googleapis.com/compute/v1"
_REGIONS = {"us-central1": "10.128.0.0/20", "us-west4": "10.182.0.0/20", "us-east5": "10.202.0.0/20"}


class ComputeNetwork:
    """Firewall rules and routes of the network, and its subnetworks and routers by region."""

    def __init__(self, project: str) -> None:
        self._project = f"projects/{project}/"
        self._network = f"{self._project}global/networks/default"
        self.firewalls = [
            self.rule("default-allow-icmp", "0.0.0.0/0", protocol="icmp"),
            self.rule("default-allow-internal", "10.128.0.0/9", "0-65535"),
            self.rule("default-allow-rdp", "0.0.0.0/0", "3389"),
            self.rule("default-allow-ssh", "0.0.0.0/0", "22"),
        ]
        gateway = f"{_URL}/{self._project}global/gateways/default-internet-gateway"
        self.routes = [self.resource("default-route-1", destRange="0.0.0.0/0", nextHopGateway=gateway)]
        self.subnetworks = {
            region: [self.resource("default", ipCidrRange=addresses, privateIpGoogleAccess=False)]
            for region, addresses in _REGIONS.items()
        }
        self.routers: dict[str, list[dict[str, Any]]] = {}

    def resource(self, name: str, **fields: object) -> dict[str, Any]:
        return {"name": name, "network": f"{_URL}/{self._network}", **fields}

    def rule(
        self, name: str, source: str, port: str = "", *, protocol: str = "tcp", **fields: object
    ) -> dict[str, Any]:
        """Make a rule that admits a source; `fields` are the API's, and replace these; None omits one."""
        allowed = [{"IPProtocol": protocol} | ({"ports": [port]} if port else {})]
        ingress = {"priority": 65534, "direction": "INGRESS", "disabled": False, "sourceRanges": [source]}
        made = ingress | {"allowed": allowed} | fields
        return self.resource(name, **{field: value for field, value in made.items() if value is not None})

    def answer(self, request: StorageRequest) -> StorageResponse:
        """Answer a request to compute.googleapis.com. Raises `StorageError`: 404: there is no such resource."""
        path = request.path.removeprefix("/compute/v1/")
        match path.removeprefix(self._project).split("/"):
            case ["global", "networks", "default"]:
                return json_response(self.resource("default"))
            case ["global", "firewalls" | "routes" as kind]:
                items = getattr(self, kind)
            case ["regions", region, "subnetworks" | "routers" as kind]:
                items = getattr(self, kind).get(region, [])
            case _:
                raise StorageError(404, f"The resource '{path}' was not found")
        first = int(request.query.get("pageToken", "0"))
        more = {"nextPageToken": str(first + _PAGE)} if len(items) > first + _PAGE else {}
        return json_response({"items": items[first : first + _PAGE], **more})
