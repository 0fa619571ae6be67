"""The network of a job in a sandbox: a namespace of its own, from which neither this host nor other jobs are reached.

A worker that is root links it with this host by a pair of interfaces, behind its firewall. For another user `pasta`
(package `passt`) passes the job's connections on. Either way the namespace has a packet filter of its own against what
jobs must not reach, which the job cannot change. Where neither can be had, an HTTP proxy has the same rules, and the
network is loopback alone. The kernel deletes it, and its interfaces, after the job's last process.
"""

import json
import logging
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import cache

from core.settings import Settings
from core.system.bubblewrap_command import begin_command, bind_system
from worker.backends.network_limits import FirewallUnavailable, find_limits
from worker.backends.package_indexes import configured_addresses
from worker.backends.process.job_sandbox import in_memory
from worker.backends.process.network.linked_networks import LinkedNetworks, set_firewall
from worker.backends.process.network.relayed_networks import RelayedNetworks, start_helper
from worker.backends.process.sandbox_processes import children_of, find_sandbox, is_sandbox
from worker.sandbox import http_proxy
from worker.sandbox.network_namespace import JobNetwork, NetworkUnavailable, SharedNetwork, listen
from worker.sandbox.packet_filter import Rule

logger = logging.getLogger(__name__)

HOST_NETWORK, NO_NETWORK = JobNetwork(), JobNetwork("--unshare-net")

_ADDRESS, _PORT = "127.0.0.1", 3128
_NAMES = ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy")


class ProxiedNetworks(JobNetwork):
    """Networks that lead only to an HTTP proxy, which runs as the worker's own user, or as nobody if that is root."""

    variables = {  # noqa: RUF012 - never changed
        **dict.fromkeys(_NAMES, f"http://{_ADDRESS}:{_PORT}"),
        **dict.fromkeys(("NO_PROXY", "no_proxy"), f"localhost,{_ADDRESS}"),
    }

    def __init__(self, limits: Callable[[list[str]], list[Rule]]) -> None:
        super().__init__("--unshare-net")
        self._find_limits = limits

    def attach(self, first: int) -> None:
        rules = sorted(self._find_limits([]), key=lambda rule: rule.order)
        given = [(str(rule.to), rule.port, rule.refused) for rule in rules if rule.protocol != socket.IPPROTO_UDP]
        sandbox = os.pidfd_open(first)
        try:
            with listen(first, _ADDRESS, _PORT) as listener, in_memory(json.dumps(given).encode()) as file:
                inherited = listener.fileno(), sandbox
                words = [sys.executable, "-I", "-S", http_proxy.__file__, *map(str, inherited)]
                start_helper(words, subprocess.DEVNULL, *inherited, given=file)
        finally:
            os.close(sandbox)


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
    kind, limited = _find_kind()
    assert kind is not None  # noqa: S101 - for mypy: there is no reason against it
    if kind is ProxiedNetworks:
        logger.warning("jobs_by_proxy: jobs reach HTTP and HTTPS alone", extra={"why": limited})

    def limits(servers: list[str]) -> list[Rule]:
        indexes = [one for one, own in configured_addresses().items() if not own or kind is ProxiedNetworks]
        return find_limits(settings, servers, indexes, shared=shared())

    return kind(limits)


def reason_without_network(settings: Settings) -> str | None:
    """Return the reason that jobs in a sandbox have this host's network; None if they have one of their own."""
    if settings.process.network == "off":
        return "GRADIENT_PROCESS__NETWORK=off"
    kind, why = _find_kind()
    return why if kind is None else None


def reason_for_proxy() -> str | None:
    """Return the reason that jobs with a network of their own reach HTTP and HTTPS alone; None if they reach all."""
    kind, why = _find_kind()
    return why if kind is ProxiedNetworks else None


@cache
def _find_kind() -> tuple[type[LinkedNetworks | RelayedNetworks | ProxiedNetworks] | None, str | None]:
    """Make networks once, as for a job; return the best kind that can be made, and why no better one can."""
    whys = []
    for kind in (LinkedNetworks if os.geteuid() == 0 else RelayedNetworks, ProxiedNetworks):
        try:
            if kind is LinkedNetworks:
                set_firewall()
                os.close(LinkedNetworks(lambda _: []).make())
            else:
                _try_network(kind(lambda _: []))
        except (FirewallUnavailable, OSError) as error:
            whys.append(str(error))
        else:
            return kind, "; ".join(whys) or None
    return None, "; ".join(whys)


def _try_network(network: JobNetwork) -> None:
    """Make a network for a sandbox that runs nothing. Raises `OSError`: this fails."""
    words = [*begin_command(), *bind_system(), *network.unshare, "--", "sh", "-c", "echo; read _"]
    pipe, none = subprocess.PIPE, subprocess.DEVNULL
    with subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=none) as child:  # noqa: S603 - words of ours
        try:
            if child.stdout is None or not child.stdout.readline():
                raise NetworkUnavailable("bubblewrap makes no network")
            network.attach(children_of(child.pid)[0])
        finally:
            child.kill()
