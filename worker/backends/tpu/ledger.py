"""Where the backend writes down what bills, before it asks for it. The record itself is not the backend's business."""

from dataclasses import dataclass
from typing import Protocol

NODE, QUEUED, POOL = "tpu_node", "tpu_queued", "tpu_pool"
"""Kinds of entries: a node made at once; a queued resource with its node; a node that was there before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One thing that was asked for.

    Attributes:
        id: Of the entry.
        name: `<zone>/<id>` in the cloud.
        operation: The cloud's name of the operation that makes it; None: not known.
        age: Seconds since the intent was written down.
        over: It is gone, or the cloud has taken the wish to delete it.
    """

    id: int
    kind: str
    name: str
    job_id: str
    attempt: int
    operation: str | None
    age: float
    over: bool

    @property
    def zone(self) -> str:
        """Its zone."""
        return self.name.partition("/")[0]

    @property
    def cloud_id(self) -> str:
        """Its id in the zone."""
        return self.name.partition("/")[2]


class Ledger(Protocol):
    """The record of what bills. Everything raises StoreUnavailable when it cannot be reached."""

    def installation(self) -> str:
        """What this service's resources are labelled with, so that no other one's are touched."""

    def intend(self, kind: str, name: str, *, job_id: str, attempt: int) -> Entry | None:
        """Write down what is about to be asked for; a repeat gives the same entry. None: another attempt holds it."""

    def note(
        self,
        entry: Entry,
        *,
        state: str,
        health: str | None = None,
        detail: str | None = None,
        operation: str | None = None,
        bills: bool = False,
    ) -> None:
        """Write down what the cloud says of it, and that it bills from now on."""

    def close(self, entry: Entry, *, gone: bool, detail: str | None = None) -> None:
        """It is gone, or, else, the cloud has taken the wish to delete it."""

    def of_attempt(self, job_id: str, attempt: int) -> list[Entry]:
        """Everything that was ever asked for it, the first first."""

    def here(self) -> list[Entry]:
        """What this host's workers asked for and nobody has deleted yet."""

    def unowned(self) -> list[Entry]:
        """What is not known to be gone and should be, on any host: it is `over`, or no worker runs its attempt."""
