"""Releases devices: deletes nodes and queued resources that were created, and frees nodes of a pool."""

import logging
from collections.abc import Callable

from worker.backends.tpu.api import ApiError, ApiRefused, TpuApi
from worker.backends.tpu.billing import DeletionMonitor, record_billing
from worker.backends.tpu.resource_inventory import POOL, QUEUED, ResourceEntry, ResourceInventory

logger = logging.getLogger(__name__)


class NodeDeleter:
    """Every method may be repeated, by any worker."""

    def __init__(self, api: TpuApi, resource_inventory: ResourceInventory, deletions: DeletionMonitor) -> None:
        self._api = api
        self._resource_inventory = resource_inventory
        self._deletions = deletions

    def remove(self, entry: ResourceEntry, why: str | None = None) -> None:
        """Delete a resource; a missing one counts as deleted. On return the cloud has accepted the request.

        Raises:
            ApiUnavailable: It is unknown whether the cloud has accepted the request; try again.
            ApiRefused: The cloud refused the request.
        """
        if entry.kind == POOL:
            self._resource_inventory.record_deletion(entry, gone=True, detail=why)
            return
        self._record_billing(entry)
        self._deletions.add(entry)  # now, since the answer may come long after the deletion
        existed = self._delete(entry)
        self._resource_inventory.record_deletion(entry, gone=not existed, detail=why)

    def try_remove(self, entry: ResourceEntry, why: str | None = None) -> bool:
        """Delete a resource; return False if the cloud has not accepted that: the teardown and the sweep try again."""
        try:
            self.remove(entry, why)
        except ApiError as error:  # one that is being deleted may refuse to be deleted again
            level = logging.INFO if entry.over else logging.WARNING
            logger.log(level, "tpu_not_deleted", extra={"resource": entry.name, "error": str(error)})
            return False
        return True

    def _record_billing(self, entry: ResourceEntry) -> None:
        """Record the billing of a device that became READY unseen, as while no worker was there."""
        try:
            node = self._api.node(entry.zone, entry.cloud_id)
        except ApiError as error:  # the deletion must not wait for that
            logger.info("tpu_not_checked", extra={"resource": entry.name, "error": str(error)})
            return
        if node is not None:
            record_billing(self._resource_inventory, entry, node)

    def _delete(self, entry: ResourceEntry) -> bool:
        """Delete the resource; return whether there was one."""
        if entry.kind != QUEUED:
            return self._api.delete_node(entry.zone, entry.cloud_id)
        if not entry.over:
            # This deletes its node too; a node that outlived it is deleted by its own name.
            return self._api.delete_queued(entry.zone, entry.cloud_id) or self._api.delete_node(
                entry.zone, entry.cloud_id
            )
        # Requested before: that may never come to an end, and the node outlive it.
        deleted = [_delete_again(delete, entry) for delete in (self._api.delete_queued, self._api.delete_node)]
        return any(deleted)


def _delete_again(delete: Callable[[str, str], bool], entry: ResourceEntry) -> bool:
    """Delete what may be being deleted, so that Google may refuse it; return whether it exists."""
    try:
        return delete(entry.zone, entry.cloud_id)
    except ApiRefused as error:
        logger.info("tpu_not_deleted_again", extra={"resource": entry.name, "error": str(error)})
        return True
