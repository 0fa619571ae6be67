"""Interprets state and health of nodes and queued resources for the jobs on them.

Both must be checked: a node can be READY and unhealthy.
"""

from dataclasses import dataclass

from worker.backends.tpu.api import Node, QueuedResource

READY = "READY"
STARTING_STATES = frozenset({"UNSPECIFIED", "CREATING", "STARTING", "RESTARTING", "REIMAGING", "REPAIRING", "UNHIDING"})
"""States that lead to READY by themselves."""
UNBILLED_STATES = frozenset({"PREEMPTED", "STOPPED", "TERMINATED"})
"""States in which a device that was READY is no longer billed."""
QUEUED_STATES = frozenset({"UNSPECIFIED", "CREATING", "ACCEPTED", "PROVISIONING", "WAITING_FOR_RESOURCES"})
"""States of a queued resource that lead to ACTIVE by themselves."""
CAPACITY_LABEL, FLEX_START = "gradient-capacity", "flex-start"
"""Label, and its value, of nodes that Google deletes after their run duration: the API's version 2 does not show it."""
_HEALTHY = frozenset({"UNSPECIFIED", "HEALTHY"})


@dataclass(frozen=True, slots=True)
class NodeFailure:
    """A problem that makes a device useless to its job: a name in REASONS, and details."""

    reason: str
    detail: str


def temporary_failure(node: Node) -> NodeFailure | None:
    """Return the problem of a node that may recover by itself; None if it has none."""
    if node.state == READY and node.health not in _HEALTHY:
        detail = f": {node.health_detail}" if node.health_detail else ""
        return NodeFailure("tpu_unhealthy", f"{node.zone}/{node.id} is READY, but {node.health}{detail}")
    if node.state in STARTING_STATES:
        return NodeFailure("tpu_unhealthy", f"{node.zone}/{node.id} is {node.state}")
    return None


def address_failure(node: Node, hosts: int) -> NodeFailure | None:
    """Compare the addresses of a READY node with the hosts of its machine type; None if there are as many."""
    where, count = f"{node.zone}/{node.id}", len(node.endpoints)
    if count == hosts:
        return None
    if count > hosts:
        text = f"{where} is a slice of {count} hosts, but the catalogue has {hosts}; set `hosts = {count}` for its"
        return NodeFailure("tpu_denied", f"{text} machine type")
    if count == 0:
        return NodeFailure("tpu_unreachable", f"{where} is READY but has no address")
    return NodeFailure("tpu_unhealthy", f"{where} is READY, but only {count} of its {hosts} hosts have an address")


def moved(node: Node, addresses: list[str]) -> NodeFailure | None:
    """Return the problem of a node that came back at other addresses than its job uses; None if it has these."""
    current = [address for address, _ in node.endpoints]
    if node.state != READY or not current or sorted(current) == sorted(addresses):
        return None
    text = f"came back at {', '.join(current)}, but its job uses {', '.join(addresses)}"
    return NodeFailure("tpu_lost", f"{node.zone}/{node.id} {text}")


def permanent_failure(node: Node) -> NodeFailure | None:
    """Return the problem of a node that does not recover by itself; None if it has none."""
    where = f"{node.zone}/{node.id}"
    if node.state == "PREEMPTED" or (node.spot and node.state in {"STOPPED", "TERMINATED"}):
        return NodeFailure("preempted", f"{where} is {node.state}")
    if node.state in STARTING_STATES or node.state == READY:
        return None
    return NodeFailure("tpu_lost", f"{where} is {node.state}")


def suspension(queued: QueuedResource) -> NodeFailure | None:
    """Return the problem of a queued resource without a node; None: it has one, or will have one."""
    if not queued.state.startswith("SUSPEND"):
        return None
    where = f"queued resource {queued.zone}/{queued.id} is {queued.state}"
    if queued.by_user:
        return NodeFailure("tpu_suspended", f"{where}, because a user requested it")
    if queued.spot:
        return NodeFailure("preempted", where)
    flex_start = queued.labels.get(CAPACITY_LABEL) == FLEX_START
    return NodeFailure("tpu_expired", where) if flex_start else NodeFailure("tpu_suspended", f"{where}, by Google")


def deleted_node(where: str) -> NodeFailure:
    """Return the problem of a node in use that no longer exists."""
    return NodeFailure("tpu_lost", f"{where} no longer exists")
