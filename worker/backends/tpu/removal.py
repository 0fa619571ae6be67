"""Gives back what was asked for: deletes what was made, lets go of what was there before."""

from worker.backends.tpu.api import TpuApi
from worker.backends.tpu.ledger import POOL, QUEUED, Entry, Ledger


class Removal:
    """Any of it may be repeated, by anyone."""

    def __init__(self, api: TpuApi, ledger: Ledger) -> None:
        self._api = api
        self._ledger = ledger

    def remove(self, entry: Entry, why: str | None = None) -> None:
        """Have it deleted; what is not there is gone. When this returns the cloud has taken the wish.

        Raises:
            ApiAway: It is not known whether it has; ask again.
            ApiRefused: It has not.
        """
        if entry.kind == POOL:
            self._ledger.close(entry, gone=True, detail=why)
            return
        taken = self._delete(entry)
        self._ledger.close(entry, gone=not taken, detail=why)

    def _delete(self, entry: Entry) -> bool:
        """Whether there was something to delete."""
        if entry.kind == QUEUED:
            # Its node first goes with it; one that outlived it is deleted by its own name.
            queued = self._api.delete_queued(entry.zone, entry.cloud_id)
            return queued or self._api.delete_node(entry.zone, entry.cloud_id)
        return self._api.delete_node(entry.zone, entry.cloud_id)
