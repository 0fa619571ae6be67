"""The network of a job in a sandbox: a namespace of its own, from which neither this host nor other jobs are reached.

A worker that is root links it with this host by a pair of interfaces, behind its firewall. For another user `pasta`
(package `passt`) passes the job's connections on. Either way the namespace has a packet filter of its own against what
jobs must not reach, which the job cannot change. The kernel deletes it, and its interfaces, after the job's last
process.
"""

import logging
import os
import subprocess
from collections.abc import Callable
from contextlib import suppress
from functools import cache

from core.settings import Settings
from core.system.bubblewrap_command import begin_command, bind_system
from worker.backends.network_limits import FirewallUnavailable, find_limits
from worker.backends.package_indexes import configured_addresses
from worker.backends.process.job_sandbox import reason_without_sandbox
from worker.backends.process.network.linked_networks import LinkedNetworks, set_firewall
from worker.backends.process.network.relayed_networks import RelayedNetworks
from worker.backends.process.sandbox_processes import children_of, find_sandbox, is_sandbox
from worker.sandbox.network_namespace import JobNetwork, NetworkUnavailable, SharedNetwork
from worker.sandbox.packet_filter import Rule

logger = logging.getLogger(__name__)

HOST_NETWORK, NO_NETWORK = JobNetwork(), JobNetwork("--unshare-net")


def is_own_network(first: int) -> bool:
    return os.readlink(f"/proc/{first}/ns/net") != os.readlink("/proc/self/ns/net")  # noqa: PTH115 - not a path of files


def join_network_of(job_id: str, attempt: int, network: JobNetwork) -> JobNetwork:
    """Return the network of another attempt's sandbox, which `network` has made; `network` if the sandbox has ended."""
    first = find_sandbox(job_id, attempt)
    if first is None:
        return network
    with suppress(FileNotFoundError, ProcessLookupError):
        shared = SharedNetwork(network, first)
        # The pid may have been another process's by the time that the network was opened.
        return shared if is_sandbox(first, job_id, attempt) else network
    return network


def make_network(settings: Settings, shared: Callable[[], bool]) -> Callable[[], JobNetwork]:
    """Return what gives the network of a job in a sandbox, when that starts.

    It is closed to private addresses if the installation is shared. Where none can be made it is localhost alone if the
    installation is shared, and that of the host otherwise.
    """
    why = reason_without_network(settings)
    if why is not None:
        if settings.process.network == "off":
            return lambda: HOST_NETWORK
        logger.warning(
            "jobs_without_network: while one API key is valid, jobs reach what listens on this machine, and each "
            "other's ports; once there are more, they have localhost alone.",
            extra={"why": why},
        )
        return lambda: NO_NETWORK if shared() else HOST_NETWORK

    def limits(servers: list[str]) -> list[Rule]:
        indexes = [address for address, on_host in configured_addresses().items() if not on_host]
        return find_limits(settings, servers, indexes, shared=shared())

    network = LinkedNetworks(limits) if os.geteuid() == 0 else RelayedNetworks(limits)
    return lambda: network


def reason_without_network(settings: Settings) -> str | None:
    """Return the reason that jobs have no network of their own that leads out of this host; None: they have."""
    if settings.process.network == "off":
        return "GRADIENT_PROCESS__NETWORK=off"
    return reason_without_sandbox(settings) or _try_networks()


@cache
def _try_networks() -> str | None:
    """Make a network once, as for a job; return why that fails, if so."""
    try:
        if os.geteuid() == 0:
            set_firewall()
            networks = LinkedNetworks(lambda _: [])
            network = networks.make()
            try:
                networks.set_filter(network.namespace)
            finally:
                network.close()
        else:
            _try_network(RelayedNetworks(lambda _: []))
    except (FirewallUnavailable, OSError) as error:
        return str(error)
    return None


def _try_network(network: JobNetwork) -> None:
    """Make a network for a sandbox that runs nothing. Raises `OSError`: this fails."""
    command = [*begin_command(), *bind_system(), *network.unshare, "--", "sh", "-c", "echo; read _"]
    pipe, none = subprocess.PIPE, subprocess.DEVNULL
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=none) as child:  # noqa: S603 - words of ours
        try:
            if child.stdout is None or not child.stdout.readline():
                raise NetworkUnavailable("bubblewrap cannot create a network")
            network.attach(children_of(child.pid)[0])
        finally:
            child.kill()
