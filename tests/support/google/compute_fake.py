"""Google's Compute Engine API, version 1, as its documentation describes it: the default network of a new project."""

PAGE = 3
_URL = "https://www.googleapis.com/compute/v1"
_REGIONS = {"us-central1": "10.128.0.0/20", "us-west4": "10.182.0.0/20", "us-east5": "10.202.0.0/20"}


class ComputeService:
    """Firewall rules, routes, subnetworks and routers of one project, by the last part of their path.

    Its `requests` are the methods and paths in order.
    """

    def __init__(self, project: str) -> None:
        self.project = project
        self.network = f"projects/{project}/global/networks/default"
        self.requests: list[str] = []
        self.networks = [self.network]
        self.firewalls = [
            self.rule("default-allow-icmp", "0.0.0.0/0", protocol="icmp"),
            self.rule("default-allow-internal", "10.128.0.0/9", "0-65535"),
            self.rule("default-allow-rdp", "0.0.0.0/0", "3389"),
            self.rule("default-allow-ssh", "0.0.0.0/0", "22"),
        ]
        self.routes = [
            self._owned(
                name="default-route-1",
                destRange="0.0.0.0/0",
                nextHopGateway=f"{_URL}/projects/{project}/global/gateways/default-internet-gateway",
            )
        ]
        self.subnetworks = {
            region: [self._owned(name="default", ipCidrRange=addresses, privateIpGoogleAccess=False)]
            for region, addresses in _REGIONS.items()
        }
        self.routers: dict[str, list[dict]] = {}

    def rule(self, name, ranges, ports=None, *, denies=False, priority=65534, protocol="tcp", egress=False, **fields):
        """A firewall rule of the network."""
        entry = {"IPProtocol": protocol} | ({"ports": [ports]} if ports else {})
        return self._owned(
            name=name,
            priority=priority,
            direction="EGRESS" if egress else "INGRESS",
            disabled=False,
            **({"destinationRanges" if egress else "sourceRanges": [ranges]} if ranges else {}),
            **{"denied" if denies else "allowed": [entry]},
            **fields,
        )

    def add_nat(self, region):
        self.routers[region] = [self._owned(name="router", nats=[{"name": "nat"}])]

    def answer(self, method: str, path: str, query: dict[str, str]) -> tuple[int, dict]:
        """Status and body of a request."""
        self.requests.append(f"{method} {path}")
        path = path.removeprefix("/compute/v1/")
        own = path.removeprefix(f"projects/{self.project}/")
        kind = own.rpartition("/")[2]
        region = own.split("/")[1]
        if path in self.networks:
            return 200, {"kind": "compute#network", "selfLink": f"{_URL}/{path}"}
        if own in {"global/firewalls", "global/routes"}:
            items = getattr(self, kind)
        elif own in {f"regions/{region}/subnetworks", f"regions/{region}/routers"}:
            items = getattr(self, kind).get(region, [])
        else:
            return 404, {"error": {"code": 404, "message": f"The resource '{path}' was not found"}}
        first = int(query.get("pageToken", "0"))
        more = {"nextPageToken": str(first + PAGE)} if len(items) > first + PAGE else {}
        return 200, {"kind": f"compute#{kind}List", "items": items[first : first + PAGE], **more}

    def _owned(self, **fields):
        return {"network": f"{_URL}/{self.network}", **fields}
