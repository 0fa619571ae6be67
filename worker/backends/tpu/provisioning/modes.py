"""Two provisioning modes, direct node and queued resource, behind one interface."""

from dataclasses import dataclass
from typing import Protocol

from worker.backends.tpu import node_state
from worker.backends.tpu.api import FAILED, ApiRefused, Node, TpuApi, Wish
from worker.backends.tpu.node_state import Trouble
from worker.backends.tpu.resource_log import NODE, QUEUED, Entry


@dataclass(frozen=True, slots=True)
class Look:
    """State of an attempt's resource in the cloud.

    Attributes:
        there: A resource of ours exists.
        state: The cloud's name of its state.
        node: The node, once there is one.
        trouble: A problem that does not go away by itself.
    """

    there: bool
    state: str
    node: Node | None = None
    trouble: Trouble | None = None


class Way(Protocol):
    """A provisioning mode. Its methods raise ApiAway and ApiRefused."""

    kind: str
    words: str
    """Name of the kind of resource, for messages."""

    def look(self, entry: Entry) -> Look:
        """Return the current state of the resource."""

    def make(self, zone: str, wish: Wish, seconds: float) -> str | None:
        """Request the resource, for so many seconds; return the operation's name, or None if it exists."""


class AtOnce:
    """A node, created directly or not at all."""

    kind = NODE
    words = "node"

    def __init__(self, api: TpuApi) -> None:
        self._api = api

    def look(self, entry: Entry) -> Look:
        """See `Way.look`; an operation that failed late is a refusal."""
        node = self._api.node(entry.zone, entry.cloud_id)
        if node is not None:
            return Look(there=True, state=node.state, node=node, trouble=node_state.lost(node))
        if entry.operation is None:
            return Look(there=False, state="absent")
        if self._api.check_operation(entry.operation):
            # Created and deleted again; or created just between the two queries.
            node = self._api.node(entry.zone, entry.cloud_id)
            if node is None:
                return Look(there=True, state="GONE", trouble=node_state.missing(entry.name))
            return Look(there=True, state=node.state, node=node, trouble=node_state.lost(node))
        return Look(there=True, state="CREATING")

    def make(self, zone: str, wish: Wish, seconds: float) -> str | None:
        """See `Way.make`."""
        del seconds  # it does not wait for capacity
        return self._api.create_node(zone, wish)


class InTurn:
    """A queued resource, which creates a node when there is capacity."""

    kind = QUEUED
    words = "queued resource"

    def __init__(self, api: TpuApi) -> None:
        self._api = api

    def look(self, entry: Entry) -> Look:
        """See `Way.look`."""
        queued = self._api.queued(entry.zone, entry.cloud_id)
        if queued is None:
            return Look(there=False, state="absent")
        if queued.error is not None:
            raise queued.error
        trouble = node_state.suspended(queued)
        if trouble is not None or queued.state in node_state.QUEUEING:
            return Look(there=True, state=queued.state, trouble=trouble)
        if queued.state != "ACTIVE":
            raise ApiRefused(FAILED, f"queued resource {entry.name} is {queued.state}")
        node = self._api.node(entry.zone, entry.cloud_id)
        if node is None:
            return Look(there=True, state=queued.state, trouble=node_state.missing(entry.name))
        return Look(there=True, state=node.state, node=node, trouble=node_state.lost(node))

    def make(self, zone: str, wish: Wish, seconds: float) -> str | None:
        """See `Way.make`."""
        return self._api.create_queued(zone, wish, seconds)
