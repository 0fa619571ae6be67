"""Releases devices: deletes nodes and queued resources that were created, and frees nodes of a pool."""

from worker.backends.tpu.api import TpuApi
from worker.backends.tpu.resource_log import POOL, QUEUED, Entry, Ledger


class Removal:
    """Every method may be repeated, by any worker."""

    def __init__(self, api: TpuApi, ledger: Ledger) -> None:
        self._api = api
        self._ledger = ledger

    def remove(self, entry: Entry, why: str | None = None) -> None:
        """Delete a resource; a missing one counts as deleted. On return the cloud has accepted the request.

        Raises:
            ApiAway: It is unknown whether the cloud has accepted the request; try again.
            ApiRefused: The cloud refused the request.
        """
        if entry.kind == POOL:
            self._ledger.close(entry, gone=True, detail=why)
            return
        taken = self._delete(entry)
        self._ledger.close(entry, gone=not taken, detail=why)

    def _delete(self, entry: Entry) -> bool:
        """Delete the resource; return whether there was one."""
        if entry.kind == QUEUED:
            # This deletes its first node too; a node that outlived it is deleted by its own name.
            queued = self._api.delete_queued(entry.zone, entry.cloud_id)
            return queued or self._api.delete_node(entry.zone, entry.cloud_id)
        return self._api.delete_node(entry.zone, entry.cloud_id)
