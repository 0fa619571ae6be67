"""The address at which the nodes of a job reach those on other hosts, in the networks of these hosts."""

import socket

from core.settings import Settings


def nodes_address_problem(settings: Settings) -> str | None:
    """Describe why no nodes run here that others on other hosts reach, although an address is set; None: they do."""
    address = settings.worker.nodes_address
    if address is None:
        return None
    if settings.machines.simulate:
        closed = "GRADIENT_PROCESS__NETWORK=require" if settings.process.network == "require" else None
    elif settings.docker.network == "none":
        closed = "GRADIENT_DOCKER__NETWORK=none"
    else:
        closed = "GRADIENT_DOCKER__FIREWALL=require" if settings.docker.firewall == "require" else None
    if closed is not None:
        return f"they would be in this host's network, which {closed} does not allow for jobs"
    if address.is_unspecified or address.is_multicast or address.is_reserved:
        return f"{address} is not the address of a single host"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((str(address), 0))
        except OSError as error:
            return f"no network interface of this host has {address} ({error.strerror})"
    return None
