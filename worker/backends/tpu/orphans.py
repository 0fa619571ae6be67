"""Deletes TPU nodes and queued resources that no job owns, found by the inventory and, in every zone, by label."""

import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

from core.settings.cloud import TpuSettings
from worker.backends.tpu import times
from worker.backends.tpu.api import ApiError, Node, QueuedResource, TpuApi
from worker.backends.tpu.node_release import NodeDeleter
from worker.backends.tpu.provisioning.node_request import LABEL, LABEL_ATTEMPT, LABEL_JOB
from worker.backends.tpu.resource_inventory import NODE, QUEUED, ResourceEntry, ResourceInventory

logger = logging.getLogger(__name__)

IsOwned = Callable[[str, int], bool]  # returns whether a worker runs this attempt of this job


class OrphanSweep:
    def __init__(
        self, api: TpuApi, resource_inventory: ResourceInventory, settings: TpuSettings, deleter: NodeDeleter
    ) -> None:
        self._api = api
        self._resource_inventory = resource_inventory
        self._settings = settings
        self._deleter = deleter

    def remove(self, owned: IsOwned) -> int:
        """Delete all of them; return how many were deleted, or found to be deleted already."""
        written = [
            entry
            for entry in self._resource_inventory.list_orphaned()
            if entry.over or not owned(entry.job_id, entry.attempt)
        ]
        count = sum(self._remove(entry) for entry in written)
        recorded = {entry.name for entry in written}
        zones = dict.fromkeys([*self._settings.zones, *(entry.zone for entry in written)])
        refusals: list[str] = []
        unowned: dict[str, str] = {}
        for zone in zones:
            try:
                count += self._delete_unrecorded(zone, recorded, owned, unowned)
            except ApiError as error:
                logger.warning("zone_not_swept", extra={"zone": zone, "error": str(error)})
                refusals.append(f"{zone}: {error}")
        self._resource_inventory.record_refusal("; ".join(refusals) or None)
        self._resource_inventory.record_unowned(unowned)
        return count

    def _remove(self, entry: ResourceEntry) -> bool:
        """Delete a resource; return True unless that failed, or its deletion had been requested before."""
        if not self._deleter.try_remove(entry):
            return False
        logger.info("tpu_swept", extra={"resource": entry.name, "job_id": entry.job_id})
        return not entry.over

    def _delete_unrecorded(self, zone: str, recorded: set[str], owned: IsOwned, unowned: dict[str, str]) -> int:
        """Delete labelled resources that are not in the inventory, as after the restore of an older database.

        `unowned`: gets the owners of those that are not deleted now, by name.
        """
        count, ours = 0, self._resource_inventory.installation()
        for kind, orphan in self._list_labelled(zone):
            name, installation = f"{orphan.zone}/{orphan.id}", orphan.labels[LABEL]
            if installation != ours:
                unowned[name] = f"the installation {installation}"
                continue
            job_id, attempt = orphan.labels.get(LABEL_JOB, ""), orphan.labels.get(LABEL_ATTEMPT, "")
            if name in recorded or (attempt.isdecimal() and owned(job_id, int(attempt))):
                continue
            if time.time() - orphan.created < times.ORPHAN_GRACE_SECONDS:
                unowned[name] = f"no job: it is deleted when it is {times.ORPHAN_GRACE_SECONDS / 60:.0f} minutes old"
                continue
            logger.warning("tpu_without_job", extra={"resource": name, "job_id": job_id})
            recorded.add(name)
            entry = self._resource_inventory.record_intent(
                kind, name, job_id=job_id, attempt=int(attempt) if attempt.isdecimal() else 0
            )
            count += self._delete_orphan(kind, orphan, entry)
        return count

    def _delete_orphan(self, kind: str, orphan: Node | QueuedResource, entry: ResourceEntry | None) -> bool:
        """Delete a resource that had no record; if its job is known, it has one now, so that its cost is not lost."""
        if entry is not None:
            requested_at = min(entry.recorded_at, orphan.created)
            self._deleter.remove(replace(entry, recorded_at=requested_at))
            return True
        return (self._api.delete_queued if kind == QUEUED else self._api.delete_node)(orphan.zone, orphan.id)

    def _list_labelled(self, zone: str) -> Iterator[tuple[str, Node | QueuedResource]]:
        """Yield the resources of all installations, queued resources first: their nodes are deleted with them."""
        for kind, listed in ((QUEUED, self._api.queued_resources), (NODE, self._api.nodes)):
            for resource in listed(zone):
                if LABEL in resource.labels:
                    yield kind, resource
