"""The jobs' own network, and the firewall around it.

Containers cannot talk to each other on it (no inter-container communication). The firewall blocks what they could
otherwise reach: this host with every service on it, the cloud's metadata addresses, and the service's database and
broker, wherever they are.
"""

import hashlib
import ipaddress
import logging
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from docker.api.client import APIClient

from core.settings import Settings
from worker.backends import base
from worker.backends.base import LaunchError
from worker.backends.docker.container.config import LABEL_HOME
from worker.backends.docker.engine.client import NOT_FOUND, Engine, EngineRefused
from worker.backends.network_limits import (
    METADATA,
    METADATA_6,
    FirewallUnavailable,
    resolvers,
    run_firewall_command,
    service_addresses,
)

logger = logging.getLogger(__name__)

NONE, HOST = "none", "host"
IPV6 = 6
_BRIDGE_OPTION = "com.docker.network.bridge.name"
_ICC_OPTION = "com.docker.network.bridge.enable_icc"
_IPV6_ADDRESSES = Path("/proc/net/if_inet6")
CHECK_SECONDS = 60.0
_RULES_ARE_SET = "rules-are-set"


@dataclass(frozen=True, slots=True)
class Firewall:
    """Firewall rules for one bridge, in chains of our own that the standard chains jump to."""

    bridge: str
    blocked: tuple[str, ...]  # networks (CIDR) that jobs must not reach
    services: tuple[tuple[str, int], ...]  # (address, port) that jobs must not reach
    program: tuple[str, ...] = ()
    metrics_port: int = 0  # UDP port of this host that jobs send metrics to; 0: none
    token_port: int = 0  # TCP port of this host at which TPU jobs find tokens; 0: none
    # DNS servers that are reachable at port 53 even if blocked otherwise: some clouds answer DNS at a metadata address
    resolvers: tuple[str, ...] = ()
    ipv6: bool = False  # whether this host has IPv6, so that the rules are set for it too

    def rules(self, version: int = 4) -> str:
        """Return the chains as input for `iptables-restore --noflush`, which applies all or nothing.

        `version`: IP version, 4 or 6.
        """
        lines = ["*filter", f":{self._input_chain} - [0:0]", f":{self._forward_chain} - [0:0]"]
        for chain in (self._input_chain, self._forward_chain):
            lines.append(f"-A {chain} -m conntrack --ctstate ESTABLISHED,RELATED -j RETURN")
            for resolver in _of_version(self.resolvers, version):
                lines += [f"-A {chain} -d {resolver} -p {kind} --dport 53 -j RETURN" for kind in ("udp", "tcp")]
        if version == IPV6:  # needed for neighbour discovery
            lines.append(f"-A {self._input_chain} -p ipv6-icmp -j RETURN")
        else:
            for kind, port in (("udp", self.metrics_port), ("tcp", self.token_port)):
                lines += [f"-A {self._input_chain} -p {kind} --dport {port} -j RETURN"] if port else []
        lines.append(f"-A {self._input_chain} -j REJECT")
        lines += [f"-A {self._forward_chain} -d {network} -j REJECT" for network in _of_version(self.blocked, version)]
        lines += [
            f"-A {self._forward_chain} -d {address} -p tcp --dport {port} -j REJECT"
            for address, port in self.services
            if ipaddress.ip_address(address).version == version
        ]
        return "\n".join([*lines, "COMMIT", ""])

    def apply(self) -> None:
        """Set or renew the rules. Raises `FirewallUnavailable`: iptables is missing or failed."""
        run_firewall_command([*self.program, "sh", "-ec", self.script()])

    def script(self) -> str:
        """Return a shell script that sets or renews the rules."""
        lines = ["PATH=$PATH:/usr/sbin:/sbin", *self._set("iptables", self.rules(), "DOCKER-USER")]
        if self.ipv6:  # for which Docker has a chain for us only where it manages IPv6 itself
            lines += self._set("ip6tables", self.rules(IPV6), "FORWARD")
        return "\n".join(lines)

    def _set(self, program: str, rules: str, forward: str) -> Iterator[str]:
        yield f"{program}-restore --wait 5 --noflush <<'END'\n{rules}END"
        # Packets to this host pass INPUT; forwarded ones pass DOCKER-USER, which Docker leaves to us.
        for chain, ours in (("INPUT", self._input_chain), (forward, self._forward_chain)):
            jump = f"{chain} -i {self.bridge} -j {ours}"
            yield f"{program} --wait 5 -C {jump} 2>/dev/null || {program} --wait 5 -I {jump}"

    @property
    def _input_chain(self) -> str:
        return f"GRADIENT-IN-{self.bridge}"

    @property
    def _forward_chain(self) -> str:
        return f"GRADIENT-OUT-{self.bridge}"


class Network:
    def __init__(self, engine: Engine, settings: Settings) -> None:
        self._engine = engine
        self._settings = settings
        self._lock = threading.Lock()
        self._firewall_set_at: dict[str, float] = {}
        self._warned = False

    def ensure(self, opened: str | None = None) -> str:
        """Create the network and its firewall rules if missing, and return its name.

        The host's own network gets no firewall. `opened`: another network than the jobs', granted to a machine type by
        an administrator.
        """
        name = opened or self._settings.docker.network
        if name not in {NONE, HOST}:
            with self._lock:
                self._set_firewall(self._bridge(name))
        return name

    def renew(self) -> None:
        """Set the firewall again, at most once a minute: this host's may have been reloaded while jobs run."""
        if self._settings.docker.firewall == "off":
            return
        try:
            if not self._firewall_set_at:  # all jobs are those of an earlier worker
                self.ensure()
            for bridge in tuple(self._firewall_set_at):
                with self._lock:
                    self._set_firewall(bridge)
        except (EngineRefused, LaunchError) as error:
            logger.warning("jobs_not_fenced: jobs can reach this host and its network", extra={"why": str(error)})

    def gateway(self) -> str | None:
        """Return this host's address in the jobs' network, which is created if it is missing; None: there is none."""
        name = self.ensure()
        if name in {NONE, HOST}:
            return None
        configs = ((self._find(name) or {}).get("IPAM") or {}).get("Config") or [{}]
        gateway: str | None = configs[0].get("Gateway")
        return gateway

    def _bridge(self, name: str) -> str:
        """Return the network's interface; creates the network if it is missing."""
        network = self._find(name)
        if network is None:
            return self._create(name)
        bridge: str | None = (network["Options"] or {}).get(_BRIDGE_OPTION)
        return bridge or f"br-{network['Id'][:12]}"

    def _find(self, name: str) -> dict[str, Any] | None:
        try:
            network: dict[str, Any] = self._engine.call(lambda api: api.inspect_network(name))
        except EngineRefused as error:
            if error.status != NOT_FOUND:
                raise
            return None
        return network

    def _create(self, name: str) -> str:
        # Engines on one host share its interfaces: the name must be unique to this engine, and at most 15 characters
        # long.
        engine = self._engine.cached_info()["ID"]
        bridge = "gj" + hashlib.sha256(f"{engine} {name}".encode()).hexdigest()[:12]
        options = {_BRIDGE_OPTION: bridge, _ICC_OPTION: "false"}
        labels = {LABEL_HOME: str(self._settings.root)}
        try:
            self._engine.call(
                lambda api: api.create_network(
                    name, driver="bridge", options=options, labels=labels, check_duplicate=True, attachable=False
                )
            )
        except EngineRefused:
            # Another worker may have made it at the same time; Docker reports this conflict only in its message text.
            if self._find(name) is None:
                raise
        return bridge

    def _set_firewall(self, bridge: str) -> None:
        wanted = self._settings.docker.firewall
        if wanted == "off":
            return
        set_at = self._firewall_set_at.get(bridge)
        if set_at is not None and time.monotonic() - set_at < CHECK_SECONDS:
            return
        firewall = make_firewall(self._settings, bridge)
        try:
            if image := self._settings.docker.firewall_image:
                self._apply_in_container(firewall, image)
            else:
                firewall.apply()
        except FirewallUnavailable as error:
            if wanted == "require":
                raise LaunchError(
                    "launch_failed", f"the firewall of the jobs' network could not be set up: {error}"
                ) from error
            if not self._warned:
                self._warned = True
                logger.warning(
                    "jobs_not_fenced: jobs can reach this host and its network. Run the worker as root, name an "
                    "image with iptables in GRADIENT_DOCKER__FIREWALL_IMAGE, or set these rules at boot and "
                    "GRADIENT_DOCKER__FIREWALL=off",
                    extra={"why": str(error), "rules": firewall.rules(), "bridge": bridge},
                )
        self._firewall_set_at[bridge] = time.monotonic()

    def _apply_in_container(self, firewall: Firewall, image: str) -> None:
        """Let a short container in the host's network set the rules, for a worker that may not."""

        def run(api: APIClient) -> bytes:
            made = api.create_container_from_config(firewall_container(firewall, image))["Id"]
            output = api.attach(made, stream=True)
            api.start(made)
            return b"".join(output)

        try:
            output = self._engine.call(run).decode(errors="replace").strip()
        except EngineRefused as error:
            raise FirewallUnavailable(f"{image}: {error.detail}") from error
        if not output.endswith(_RULES_ARE_SET):
            raise FirewallUnavailable(f"{image}: {output}")


def firewall_container(firewall: Firewall, image: str) -> dict[str, Any]:
    return {
        "Image": image,
        "Entrypoint": ["/bin/sh", "-ec"],
        "Cmd": [f"{firewall.script()}\necho {_RULES_ARE_SET}"],
        "User": "0:0",
        "Healthcheck": {"Test": ["NONE"]},
        "HostConfig": {
            "AutoRemove": True,
            "NetworkMode": HOST,
            "CapDrop": ["ALL"],
            "CapAdd": ["NET_ADMIN", "NET_RAW"],
            "SecurityOpt": ["no-new-privileges"],
            "ReadonlyRootfs": True,
            "Tmpfs": {"/run": "size=1m"},  # of iptables' lock
        },
    }


def make_firewall(settings: Settings, bridge: str) -> Firewall:
    return Firewall(
        bridge,
        (*METADATA, *METADATA_6, *settings.docker.blocked),
        tuple(service_addresses(settings)),
        metrics_port=settings.statsd.port,
        token_port=base.TOKEN_PORT if settings.tpu.backend is not None else 0,
        resolvers=tuple(resolvers()),
        ipv6=_IPV6_ADDRESSES.exists(),
    )


def _of_version(networks: Iterable[str], version: int) -> list[str]:
    return [network for network in networks if ipaddress.ip_network(network, strict=False).version == version]
