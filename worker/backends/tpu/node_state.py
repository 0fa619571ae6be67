"""Interprets state and health of nodes and queued resources for the jobs on them.

Both must be checked: a node can be READY and unhealthy.
"""

from dataclasses import dataclass

from worker.backends.tpu.api import Node, Queued

READY = "READY"
COMING = frozenset({"UNSPECIFIED", "CREATING", "STARTING", "RESTARTING", "REIMAGING", "REPAIRING", "UNHIDING"})
"""States that lead to READY by themselves."""
QUEUEING = frozenset({"UNSPECIFIED", "CREATING", "ACCEPTED", "PROVISIONING", "WAITING_FOR_RESOURCES"})
"""States of a queued resource that lead to ACTIVE by themselves."""
_WELL = frozenset({"UNSPECIFIED", "HEALTHY"})


@dataclass(frozen=True, slots=True)
class Trouble:
    """A problem that makes a device useless to its job: a name in REASONS, and details."""

    reason: str
    detail: str


def usable(node: Node) -> bool:
    """Return whether a job can run on a node now."""
    return node.state == READY and node.health in _WELL and bool(node.endpoints)


def ill(node: Node) -> Trouble | None:
    """Return the problem of a node that may recover by itself; None if it has none."""
    if node.state == READY and node.health not in _WELL:
        words = f": {node.health_detail}" if node.health_detail else ""
        return Trouble("tpu_unhealthy", f"{node.zone}/{node.id} is READY, but {node.health}{words}")
    if node.state in COMING:
        return Trouble("tpu_unhealthy", f"{node.zone}/{node.id} is {node.state}")
    return None


def lost(node: Node) -> Trouble | None:
    """Return the problem of a node that does not recover by itself; None if it has none."""
    where = f"{node.zone}/{node.id}"
    if node.state == "PREEMPTED" or (node.spot and node.state in {"STOPPED", "TERMINATED"}):
        return Trouble("preempted", f"{where} is {node.state}")
    if node.state in COMING or node.state == READY:
        return None
    return Trouble("tpu_lost", f"{where} is {node.state}")


def suspended(queued: Queued) -> Trouble | None:
    """Return the problem of a queued resource without a node; None: it has one, or will have one."""
    if not queued.state.startswith("SUSPEND"):
        return None
    where = f"queued resource {queued.zone}/{queued.id} is {queued.state}"
    if queued.by_user:
        return Trouble("tpu_suspended", f"{where}, by a user's wish")
    return Trouble("preempted", where) if queued.spot else Trouble("tpu_suspended", f"{where}, by Google")


def missing(where: str) -> Trouble:
    """Return the problem of a node in use that no longer exists."""
    return Trouble("tpu_lost", f"{where} was deleted by somebody")
