"""The network of a job in a sandbox: a namespace of its own, from which neither this host nor other jobs are reached.

A worker that is root links it with this host by a pair of interfaces, behind its firewall. For another user `pasta`
(package `passt`) passes the job's connections on. Either way the namespace has rules of its own against what jobs must
not reach, which the job cannot change. The kernel deletes it, and its interfaces, after the job's last process.
"""

import logging
import os
from collections.abc import Callable
from functools import cache
from typing import Protocol, TypeVar

from core.settings import Settings
from worker.backends.linked_networks import LinkedNetworks, set_firewall
from worker.backends.network_limits import FirewallUnavailable, find_limits
from worker.backends.package_indexes import configured_addresses
from worker.backends.relayed_networks import RelayedNetworks, try_relay

logger = logging.getLogger(__name__)

T = TypeVar("T")


class JobNetwork(Protocol):
    """Makes networks for jobs.

    Attributes:
        unshare: Words of bubblewrap.
    """

    unshare: tuple[str, ...]

    def resolvers(self) -> list[str]:
        """Return the DNS servers of its jobs."""

    def start(self, start: Callable[[], T]) -> T:
        """Call what starts a job's sandbox, where that is in the job's network from then on."""

    def attach(self, first: int) -> None:
        """Complete the network of a sandbox, which has not run anything of the job's.

        Raises:
            OSError: It cannot be completed.
        """


class _NoNetworks:
    """Sandboxes whose network is as bubblewrap makes it."""

    def __init__(self, *unshare: str) -> None:
        self.unshare = unshare

    def resolvers(self) -> list[str]:
        """See `JobNetwork.resolvers`: as they are."""
        return []

    def start(self, start: Callable[[], T]) -> T:
        return start()

    def attach(self, first: int) -> None:
        """See `JobNetwork.attach`: nothing is missing."""


HOST_NETWORK, NO_NETWORK = _NoNetworks(), _NoNetworks("--unshare-net")


def is_own_network(first: int) -> bool:
    """Return whether a sandbox has a network of its own, by its first process."""
    return os.readlink(f"/proc/{first}/ns/net") != os.readlink("/proc/self/ns/net")  # noqa: PTH115


def make_network(settings: Settings, shared: Callable[[], bool]) -> JobNetwork:
    """Return what makes networks for jobs in a sandbox, closed to private addresses if the installation is shared."""
    why = reason_without_network(settings)
    if why is not None:
        if settings.process.network == "auto":
            logger.warning(
                "jobs_in_host_network: jobs reach what listens on this machine, and each other's ports. Set "
                "GRADIENT_PROCESS__NETWORK=off to have it so.",
                extra={"why": why},
            )
        return HOST_NETWORK
    kind = LinkedNetworks if os.geteuid() == 0 else RelayedNetworks

    def limits(servers: list[str]) -> bytes:
        indexes = [one for one, own in configured_addresses().items() if not own]
        return find_limits(settings, servers, indexes, shared=shared())

    return kind(limits)


def reason_without_network(settings: Settings) -> str | None:
    """Return the reason that jobs in a sandbox have this host's network; None if they have one of their own."""
    return "GRADIENT_PROCESS__NETWORK=off" if settings.process.network == "off" else _find_problem()


@cache
def _find_problem() -> str | None:
    """Make a network once, as for a job; return the reason that this fails."""
    try:
        if os.geteuid() == 0:
            set_firewall([])
            os.close(LinkedNetworks(lambda _: b"").make())
        else:
            try_relay()
    except (FirewallUnavailable, OSError) as error:
        return str(error)
    return None
