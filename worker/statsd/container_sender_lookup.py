"""Identifies the container that sent a datagram, by asking the engine.

A container is found by the address that the engine gave it, which it cannot forge: it has no right to raw sockets. The
network is inspected, not the list of containers: that has a container only when its start is complete, which on a busy
machine is seconds after its first process has begun to send.
"""

import re
import time
from collections.abc import Collection
from typing import Any

from core.settings import Settings
from worker.backends.docker.container.config import container_name
from worker.backends.docker.engine.client import Engine, EngineError
from worker.statsd.metrics_writer import Sender

Address = tuple[str, int]

CLOSED_SECONDS = 2.0  # time for which a container that is gone is still known by its address
_CACHE_SECONDS = 0.2
"""Shorter than any container's start, so that a reused address is not taken for its previous owner's."""
_CONTAINER = re.compile(re.escape(container_name("")) + r"(.+)-(\d+)\Z")


class ContainerSenderLookup:
    """Jobs that are containers on this host's engine."""

    def __init__(self, settings: Settings) -> None:
        self._engine = Engine(settings.docker, timeout=5.0)
        self._network = settings.docker.network
        self._seen: dict[str, tuple[float, Sender]] = {}
        self.trusted_until = 0.0

    def listen_address(self) -> str | None:
        """Return the gateway of the jobs' network; None until it is created with the first job."""
        try:
            network = self.inspect()
        except EngineError:
            return None
        configs = network["IPAM"]["Config"] or [{}]
        gateway: str | None = configs[0].get("Gateway")
        return gateway

    def find_senders(self, addresses: Collection[Address]) -> dict[Address, Sender]:
        """Map addresses to the jobs that have them now; the port is ignored, since an address is one container's."""
        if time.monotonic() >= self.trusted_until or not self._seen.keys() >= {
            seen_address for seen_address, _ in addresses
        }:
            self._refresh()
        return {address: self._seen[address[0]][1] for address in addresses if address[0] in self._seen}

    def _refresh(self) -> None:
        try:
            containers = self.inspect()["Containers"] or {}
        except EngineError:
            return  # meanwhile the engine reassigns no addresses
        now = time.monotonic()
        self._seen = {address: seen for address, seen in self._seen.items() if seen[0] > now - CLOSED_SECONDS}
        for container in containers.values():
            if attempt := _CONTAINER.match(container["Name"]):
                self._seen[container["IPv4Address"].partition("/")[0]] = (now, Sender(attempt[1], int(attempt[2])))
        self.trusted_until = now + _CACHE_SECONDS

    def inspect(self) -> dict[str, Any]:
        network: dict[str, Any] = self._engine.call(lambda api: api.inspect_network(self._network))
        return network
