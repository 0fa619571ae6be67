"""Checks of the network of TPU nodes: firewall rules, and the way to what a start needs; reads only."""

import socket
from collections.abc import Iterator, Sequence
from dataclasses import replace
from ipaddress import IPv4Network

from core.catalogue.machine_types import MachineType
from core.errors import GradientError
from core.settings import Settings
from gradient_server.checks.finding import Finding, Status, ok, problem, warning
from worker.backends.tpu.api import TPU_PORT, TpuApi
from worker.backends.tpu.network import FirewallRule, NodeNetwork, Subnetwork
from worker.backends.tpu.storage.job_storage import region_of
from worker.backends.tpu.vm.slices import COORDINATOR_PORT
from worker.runner.link import PORT as SESSION_PORT

_INTERNET = IPv4Network("0.0.0.0/0")
_HTTPS_PORT = 443
_ROLE = (
    "Enable compute.googleapis.com and grant the worker's account roles/compute.networkViewer, or check it yourself."
)


def check(settings: Settings, machines: Sequence[MachineType], api: TpuApi) -> Iterator[Finding]:
    """Check the network that new nodes of these machine types get, in the zones that offer them."""
    try:
        network = NodeNetwork(settings)
        if not network.exists():
            yield problem(
                "tpu-firewall",
                f"The network {network.path} does not exist.",
                "Set GRADIENT_TPU__NETWORK to one that `gcloud compute networks list` shows.",
            )
            return
        yield from _Check(settings, network).run(machines, api)
    except GradientError as error:
        yield warning("tpu-firewall", f"Firewall and routes of nodes could not be read: {error.message}", _ROLE)


class _Check:
    def __init__(self, settings: Settings, network: NodeNetwork) -> None:
        self._tpu = settings.tpu
        self._network = network
        self._ingress = network.ingress()
        self._egress = network.egress()
        self._has_route = network.has_internet_route()
        self._needs = "storage.googleapis.com and, for the start, " + (
            "an image registry or pypi.org" if self._tpu.packages is None else "the registry of images on TPU VMs"
        )

    def run(self, machines: Sequence[MachineType], api: TpuApi) -> Iterator[Finding]:
        zones = self._tpu.zones
        for region in dict.fromkeys(map(region_of, zones)):
            region_zones = [zone for zone in zones if region_of(zone) == region]
            here = [
                machine for machine in machines if any(api.offers(zone, str(machine.tpu_type)) for zone in region_zones)
            ]
            if not here:
                continue
            subnetwork = self._network.subnetwork(region)
            if subnetwork is None:
                yield problem(
                    "tpu-route",
                    f"Network {self._network.name} has no subnetwork in {region}, so no node can be created there.",
                    "Create one, or set GRADIENT_TPU__NETWORK and GRADIENT_TPU__SUBNETWORK.",
                )
                continue
            yield from self._region(region, subnetwork, here)

    def _region(self, region: str, subnetwork: Subnetwork, machines: list[MachineType]) -> Iterator[Finding]:
        on_vm = [machine for machine in machines if self._tpu.on_vm(by_default=machine.tpu_on_vm)]
        remote = [machine for machine in machines if machine not in on_vm]
        slices = [machine for machine in on_vm if machine.hosts > 1]
        if remote:
            yield self._host_admitted(region, subnetwork, remote)
            yield from self._open_to_everybody()
        if on_vm:  # jobs run without it
            sessions = self._host_admitted(region, subnetwork, on_vm, SESSION_PORT, "sessions and ports of jobs")
            yield sessions if sessions.status is Status.OK else replace(sessions, status=Status.WARNING)
        if slices:
            yield self._admitted(region, COORDINATOR_PORT, subnetwork.addresses, "the other hosts of a slice", slices)
        yield from self._egress_denied(region)
        yield self._route(region, subnetwork, on_vm, remote)

    def _host_admitted(
        self,
        region: str,
        subnetwork: Subnetwork,
        machines: list[MachineType],
        port: int = TPU_PORT,
        needed_by: str = "jobs",
    ) -> Finding:
        try:
            host = _address_towards(subnetwork)
        except OSError as error:
            return problem(
                "tpu-firewall",
                f"{region}: this host has no route to {subnetwork.addresses}, the addresses of nodes: {error}",
                f"Run workers for {_names(machines)} in network {self._network.name}.",
            )
        return self._admitted(region, port, host, f"this host ({host.network_address})", machines, needed_by)

    def _admitted(
        self,
        region: str,
        port: int,
        other: IPv4Network,
        who: str,
        machines: list[MachineType],
        needed_by: str = "jobs",
    ) -> Finding:
        """Judge whether `who`, at these addresses, can connect to a port of nodes."""
        rule = next((firewall_rule for firewall_rule in self._ingress if firewall_rule.covers(port, other)), None)
        if rule is not None and rule.allows:
            return ok("tpu-firewall", f"{region}: rule {rule.name} admits {who} to port {port} of nodes.")
        unsure = next(
            (
                firewall_rule
                for firewall_rule in self._ingress
                if firewall_rule.by_identity and firewall_rule.allows and firewall_rule.has_port(port)
            ),
            None,
        )
        if unsure is not None and (rule is None or unsure.priority < rule.priority):
            return warning(
                "tpu-firewall",
                f"{region}: rule {unsure.name} admits hosts to port {port} of nodes by network tag or service account; "
                f"whether it admits {who} was not checked.",
                f"Check it, or admit {other} with a separate rule.",
            )
        why = f"rule {rule.name} denies" if rule is not None else f"no rule of network {self._network.name} admits"
        tags = f" --target-tags {','.join(self._tpu.tags)}" if self._tpu.tags else ""
        return problem(
            "tpu-firewall",
            f"{region}: {why} {who} to port {port} of nodes, which {needed_by} of {_names(machines)} need.",
            f"gcloud compute firewall-rules create gradient-jobs-{port} --network {self._network.name} --allow "
            f"tcp:{port} --source-ranges {other}{tags}",
        )

    def _open_to_everybody(self) -> Iterator[Finding]:
        rule = next(
            (firewall_rule for firewall_rule in self._ingress if firewall_rule.covers(TPU_PORT, _INTERNET)), None
        )
        if rule is None or not rule.allows:
            return
        text = f"Rule {rule.name} admits every address to port {TPU_PORT} of nodes, which has no authentication."
        fix = "Limit its sources to the workers."
        yield problem("tpu-firewall", text, fix) if self._tpu.external_ips else warning("tpu-firewall", text, fix)

    def _egress_denied(self, region: str) -> Iterator[Finding]:
        rule = next(
            (firewall_rule for firewall_rule in self._egress if firewall_rule.covers(_HTTPS_PORT, _INTERNET)), None
        )
        if rule is None or rule.allows:
            return
        earlier = [firewall_rule for firewall_rule in self._egress if _allows_before(firewall_rule, rule)]
        if earlier:
            names = ", ".join(firewall_rule.name for firewall_rule in earlier)
            yield warning(
                "tpu-firewall",
                f"{region}: rule {rule.name} denies nodes all addresses except those of {names}; whether these are "
                "sufficient was not checked.",
                f"Nodes need {self._needs}.",
            )
        else:
            yield problem(
                "tpu-firewall",
                f"{region}: rule {rule.name} denies nodes all connections to port {_HTTPS_PORT}, so they cannot "
                "fetch anything.",
                f"Allow {self._needs}, with a lower priority number.",
            )

    def _route(
        self, region: str, subnetwork: Subnetwork, on_vm: list[MachineType], remote: list[MachineType]
    ) -> Finding:
        """Judge whether a starting node finds the bucket, its image, and packages."""
        nat = "Add Cloud NAT to the region, or set GRADIENT_TPU__EXTERNAL_IPS=true."
        if not self._has_route:
            return problem(
                "tpu-route",
                f"Network {self._network.name} has no route 0.0.0.0/0 to the default Internet gateway, which "
                "Google's APIs also need.",
                f"gcloud compute routes create gradient-jobs --network {self._network.name} --destination-range "
                "0.0.0.0/0 --next-hop-gateway default-internet-gateway",
            )
        if self._tpu.external_ips or subnetwork.nat:
            how = "external addresses" if self._tpu.external_ips else "Cloud NAT"
            return ok("tpu-route", f"{region}: nodes reach the Internet through {how}.")
        without = f"{region}: nodes in {subnetwork.name} have neither an external address nor Cloud NAT"
        if remote and self._tpu.packages is None:
            return problem(
                "tpu-route",
                f"{without}: nodes of {_names(remote)} cannot install TensorFlow from pypi.org.",
                f"{nat} Or set GRADIENT_TPU__PACKAGES, and turn on Private Google Access.",
            )
        if not subnetwork.google_access:
            lost = [f"the VMs of {_names(on_vm)} cannot fetch their job"] if on_vm else []
            lost += [f"nodes of {_names(remote)} cannot fetch {self._tpu.packages}"] if remote else []
            return problem(
                "tpu-route",
                f"{without} and no Private Google Access: {' and '.join(lost)}.",
                f"gcloud compute networks subnets update {subnetwork.name} --region {region} "
                "--enable-private-ip-google-access",
            )
        if not on_vm:
            return ok("tpu-route", f"{without}; they reach {self._tpu.packages} through Private Google Access.")
        return warning(
            "tpu-route",
            f"{without}: they reach the bucket, but only images in Google's registries.",
            f"Nothing if jobs use images in Artifact Registry. {nat}",
        )


def _allows_before(rule: FirewallRule, later: FirewallRule) -> bool:
    return rule.allows and rule.has_port(_HTTPS_PORT) and rule.priority < later.priority


def _names(machines: Sequence[MachineType]) -> str:
    return ", ".join(machine.name for machine in machines)


def _address_towards(subnetwork: Subnetwork) -> IPv4Network:
    """Return this host's own address, as nodes in a subnetwork see it; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((str(subnetwork.addresses.network_address + 1), TPU_PORT))
        return IPv4Network(probe.getsockname()[0])
