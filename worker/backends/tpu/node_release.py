"""Releases devices: deletes nodes and queued resources that were created, and frees nodes of a pool."""

from worker.backends.tpu.api import TpuApi
from worker.backends.tpu.resource_log import POOL, QUEUED, ResourceEntry, ResourceLog


class NodeDeleter:
    """Every method may be repeated, by any worker."""

    def __init__(self, api: TpuApi, resource_log: ResourceLog) -> None:
        self._api = api
        self._resource_log = resource_log

    def remove(self, entry: ResourceEntry, why: str | None = None) -> None:
        """Delete a resource; a missing one counts as deleted. On return the cloud has accepted the request.

        Raises:
            ApiUnavailable: It is unknown whether the cloud has accepted the request; try again.
            ApiRefused: The cloud refused the request.
        """
        if entry.kind == POOL:
            self._resource_log.record_deletion(entry, gone=True, detail=why)
            return
        existed = self._delete(entry)
        self._resource_log.record_deletion(entry, gone=not existed, detail=why)

    def _delete(self, entry: ResourceEntry) -> bool:
        """Delete the resource; return whether there was one."""
        if entry.kind == QUEUED:
            # This deletes its first node too; a node that outlived it is deleted by its own name.
            queued = self._api.delete_queued(entry.zone, entry.cloud_id)
            return queued or self._api.delete_node(entry.zone, entry.cloud_id)
        return self._api.delete_node(entry.zone, entry.cloud_id)
