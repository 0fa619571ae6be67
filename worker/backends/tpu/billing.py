"""Records from when to when Google bills a device: while it is READY, until it is deleted or taken away.

The end of a deletion is not the answer to its request: a deletion can take minutes, fail later, or be done although its
answer was lost. So a device is watched until it no longer exists.
"""

import logging
import threading
import time

from core.errors import StoreUnavailable
from worker.backends.tpu import node_state
from worker.backends.tpu.api import ApiError, Node, TpuApi
from worker.backends.tpu.resource_inventory import ResourceEntry, ResourceInventory

logger = logging.getLogger(__name__)


def record_billing(
    resource_inventory: ResourceInventory,
    entry: ResourceEntry,
    node: Node,
    *,
    price: float | None = None,  # US dollars per hour; None: as recorded
    not_ready_at: float = 0,  # Unix time at which it was last seen in another state; it became READY after that
) -> None:
    """Record that a device is billed, or no longer is, as its state shows."""
    if node.state == node_state.READY:
        resource_inventory.record_billing(entry, since=_find_start(entry, node, not_ready_at), price=price)
    elif node.state in node_state.UNBILLED_STATES:
        resource_inventory.record_billing(entry, since=node.created, until=time.time(), price=price)


def _find_start(entry: ResourceEntry, node: Node, not_ready_at: float) -> float:
    """Return when a READY node began to be billed: by Google's clock only if it agrees with ours."""
    start = max(node.created, not_ready_at)
    return start if entry.recorded_at <= start <= time.time() else not_ready_at or entry.recorded_at


class DeletionMonitor:
    """Watches devices whose deletion was requested, in a thread of its own, and records when they are gone."""

    def __init__(self, api: TpuApi, resource_inventory: ResourceInventory, seconds: float) -> None:
        self._api = api
        self._resource_inventory = resource_inventory
        self._seconds = seconds
        self._lock = threading.Lock()
        self._entries: dict[int, ResourceEntry] = {}
        self._is_running = False

    def add(self, entry: ResourceEntry) -> None:
        """Watch this device until it is gone; a repeat changes nothing."""
        with self._lock:
            self._entries[entry.id] = entry
            if not self._is_running:
                self._is_running = True
                threading.Thread(target=self._run, name="tpu-deletions", daemon=True).start()

    def _run(self) -> None:
        while True:
            time.sleep(self._seconds)
            for entry in list(self._entries.values()):
                try:
                    is_gone = self._is_gone(entry)
                except (ApiError, StoreUnavailable) as error:
                    logger.info("tpu_deletion_not_seen", extra={"resource": entry.name, "error": str(error)})
                    time.sleep(getattr(error, "delay", 0.0))
                    continue
                except Exception:  # an error would end the thread
                    logger.exception("tpu_deletion_check_failed")
                    is_gone = True
                if is_gone:
                    with self._lock:
                        self._entries.pop(entry.id, None)
            with self._lock:
                if not self._entries:
                    self._is_running = False
                    return

    def _is_gone(self, entry: ResourceEntry) -> bool:
        """Return whether the device no longer exists; then record it as the end of billing."""
        node = self._api.node(entry.zone, entry.cloud_id)
        if node is None:
            self._resource_inventory.record_billing(entry, until=time.time())
        else:
            record_billing(self._resource_inventory, entry, node)
        return node is None
