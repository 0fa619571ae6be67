"""What a node's and a queued resource's state and health mean for the job on it.

State and health decide together: a node can be READY and ill.
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
    """Why a device is of no use to its job: a name in REASONS, and what is known beside it."""

    reason: str
    detail: str


def usable(node: Node) -> bool:
    """Whether a job can run on it now."""
    return node.state == READY and node.health in _WELL and bool(node.endpoints)


def ill(node: Node) -> Trouble | None:
    """What is wrong with a node that may get well by itself."""
    if node.state == READY and node.health not in _WELL:
        words = f": {node.health_detail}" if node.health_detail else ""
        return Trouble("tpu_unhealthy", f"{node.zone}/{node.id} is READY, but {node.health}{words}")
    if node.state in COMING:
        return Trouble("tpu_unhealthy", f"{node.zone}/{node.id} is {node.state}")
    return None


def lost(node: Node) -> Trouble | None:
    """What is wrong with a node that does not come back by itself."""
    where = f"{node.zone}/{node.id}"
    if node.state == "PREEMPTED" or (node.spot and node.state in {"STOPPED", "TERMINATED"}):
        return Trouble("preempted", f"{where} is {node.state}")
    if node.state in COMING or node.state == READY:
        return None
    return Trouble("tpu_lost", f"{where} is {node.state}")


def suspended(queued: Queued) -> Trouble | None:
    """What it means that a queued resource has no node any more; None: it has, or will have."""
    if not queued.state.startswith("SUSPEND"):
        return None
    where = f"queued resource {queued.zone}/{queued.id} is {queued.state}"
    if queued.by_user:
        return Trouble("tpu_suspended", f"{where}, by a user's wish")
    return Trouble("preempted", where) if queued.spot else Trouble("tpu_suspended", f"{where}, by Google")


def missing(where: str) -> Trouble:
    """What it means that a node in use is not there any more."""
    return Trouble("tpu_lost", f"{where} was deleted by somebody")
