"""The interface of the record of billed resources, which are recorded before they are requested.

The backend does not depend on where the record is stored.
"""

from dataclasses import dataclass
from typing import Protocol

NODE, QUEUED, POOL = "tpu_node", "tpu_queued", "tpu_pool"
"""Kinds of entries: a directly created node; a queued resource with its node; an existing node of a pool."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceEntry:
    id: int
    kind: str
    name: str  # `<zone>/<id>` in the cloud
    job_id: str
    attempt: int
    operation: str | None  # the cloud's name of the operation that creates it; None: unknown
    recorded_at: float  # Unix time at which it was recorded, by this computer's clock
    over: bool  # it is deleted, or the cloud has accepted the request to delete it

    @property
    def zone(self) -> str:
        return self.name.partition("/")[0]

    @property
    def cloud_id(self) -> str:
        return self.name.partition("/")[2]


class ResourceInventory(Protocol):
    """The record of billed resources. Every method raises StoreUnavailable if the record cannot be reached."""

    def installation(self) -> str:
        """Return the label of this service's resources, so that those of other services are not touched."""

    def record_intent(
        self, kind: str, name: str, *, job_id: str, attempt: int, price: float | None = None
    ) -> ResourceEntry | None:
        """Record a resource before it is requested; a repeat returns the same entry.

        None: another attempt holds it, or the job is not known. `price`: US dollars per hour; None: the price of the
        job's machine type.
        """

    def update(
        self,
        entry: ResourceEntry,
        *,
        state: str,
        health: str | None = None,
        detail: str | None = None,
        operation: str | None = None,
    ) -> None:
        """Record the cloud's state of a resource."""

    def record_billing(
        self,
        entry: ResourceEntry,
        *,
        since: float | None = None,
        until: float | None = None,  # end of billing; ignored for a resource that was never billed
        price: float | None = None,  # US dollars per hour; None: as recorded
    ) -> None:
        """Record when billing began or ended, in Unix time; what was recorded first stays."""

    def record_deletion(self, entry: ResourceEntry, *, gone: bool, detail: str | None = None) -> None:
        """Mark a resource as deleted or, if not `gone`, as "delete requested"."""

    def record_refusal(self, why: str | None) -> None:
        """Record since when the cloud refuses the worker, and why; None: it does not."""

    def record_unowned(self, owners: dict[str, str]) -> None:
        """Record the service's other resources in the cloud, which no job here owns: who does, by name."""

    def list_of_attempt(self, job_id: str, attempt: int) -> list[ResourceEntry]:
        """List all resources of an attempt, oldest first."""

    def list_on_host(self) -> list[ResourceEntry]:
        """List resources that this host's workers requested and nobody has deleted yet."""

    def list_orphaned(self) -> list[ResourceEntry]:
        """List resources on any host that should be deleted: they are `over`, or no worker runs their attempt."""
