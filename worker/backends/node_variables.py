"""The variables by which the nodes of a job find each other, on hosts of ours and in an allocation of Slurm."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from collections.abc import Sequence


def describe_nodes(
    rank: int, addresses: Sequence[str], port: int, ports: Sequence[int], interface: str | None
) -> dict[str, str]:
    """Return the variables of one node.

    Args:
        addresses: Those of all nodes, by rank.
        port: The port of the first node at which all meet.
        ports: One more of each node, by rank.
        interface: The network interface between the nodes; None: it is left to the libraries.
    """
    tasks = [f"{address}:{number}" for address, number in zip(addresses, ports)]  # noqa: B905 - Python 3.9
    variables = {
        "MASTER_ADDR": addresses[0],
        "MASTER_PORT": str(port),
        "RANK": str(rank),
        "NODE_RANK": str(rank),
        "WORLD_SIZE": str(len(addresses)),
        "TF_CONFIG": json.dumps({"cluster": {"worker": tasks}, "task": {"type": "worker", "index": rank}}),
    }
    # Otherwise libraries look for the interface of the host's name, which is not in a sandbox.
    names = () if interface is None else ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
    return {**variables, **dict.fromkeys(names, interface or "")}


def interface_of(address: str) -> str | None:
    """Return the network interface of this host that has an address; None: none has it."""
    names = (name for name, its in psutil.net_if_addrs().items() if address in {entry.address for entry in its})
    return next(names, None)
