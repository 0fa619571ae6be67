"""The two ways of making a TPU for a job, told alike: what there is, how it is made."""

from dataclasses import dataclass
from typing import Protocol

from worker.backends.tpu import verdict
from worker.backends.tpu.api import FAILED, ApiRefused, Node, TpuApi, Wish
from worker.backends.tpu.ledger import NODE, QUEUED, Entry
from worker.backends.tpu.verdict import Trouble


@dataclass(frozen=True, slots=True)
class Look:
    """What a look at the cloud found.

    Attributes:
        there: Something of ours is there.
        state: By the cloud's name; what is waited for is in it.
        node: The node, as soon as there is one.
        trouble: It will not become of use by itself.
    """

    there: bool
    state: str
    node: Node | None = None
    trouble: Trouble | None = None


class Way(Protocol):
    """Raises ApiAway and ApiRefused."""

    kind: str
    words: str
    """What is waited for."""

    def look(self, entry: Entry) -> Look:
        """What has become of it."""

    def make(self, zone: str, wish: Wish, seconds: float) -> str | None:
        """Ask for it, for so long; the operation's name, or None: it is there."""


class AtOnce:
    """A node, made at once or not at all."""

    kind = NODE
    words = "node"

    def __init__(self, api: TpuApi) -> None:
        self._api = api

    def look(self, entry: Entry) -> Look:
        """See `Way.look`; an operation that failed late is a refusal."""
        node = self._api.node(entry.zone, entry.cloud_id)
        if node is not None:
            return Look(there=True, state=node.state, node=node, trouble=verdict.lost(node))
        if entry.operation is None:
            return Look(there=False, state="absent")
        if self._api.check_operation(entry.operation):
            # Made and gone again; between the two looks it may also just have been made.
            node = self._api.node(entry.zone, entry.cloud_id)
            if node is None:
                return Look(there=True, state="GONE", trouble=verdict.missing(entry.name))
            return Look(there=True, state=node.state, node=node, trouble=verdict.lost(node))
        return Look(there=True, state="CREATING")

    def make(self, zone: str, wish: Wish, seconds: float) -> str | None:
        """See `Way.make`."""
        del seconds  # it does not wait for capacity
        return self._api.create_node(zone, wish)


class InTurn:
    """A queued resource, which makes a node when there is room for it."""

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
        trouble = verdict.suspended(queued)
        if trouble is not None or queued.state in verdict.QUEUEING:
            return Look(there=True, state=queued.state, trouble=trouble)
        if queued.state != "ACTIVE":
            raise ApiRefused(FAILED, f"queued resource {entry.name} is {queued.state}")
        node = self._api.node(entry.zone, entry.cloud_id)
        if node is None:
            return Look(there=True, state=queued.state, trouble=verdict.missing(entry.name))
        return Look(there=True, state=node.state, node=node, trouble=verdict.lost(node))

    def make(self, zone: str, wish: Wish, seconds: float) -> str | None:
        """See `Way.make`."""
        return self._api.create_queued(zone, wish, seconds)
