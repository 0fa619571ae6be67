"""Checks the TPUs in use periodically, in threads of its own: the API may take its time to answer."""

import logging
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime

from core.errors import StoreUnavailable
from core.settings.cloud import TpuSettings
from worker.backends.tpu import node_state, times
from worker.backends.tpu.api import ApiError, Node, TpuApi
from worker.backends.tpu.billing import record_billing
from worker.backends.tpu.node_state import NodeFailure
from worker.backends.tpu.resource_inventory import QUEUED, ResourceEntry, ResourceInventory

logger = logging.getLogger(__name__)

_THREADS = 4
_LAST_CHECK_SECONDS = 10.0


@dataclass(slots=True)
class _NodeHealth:
    polled_at: float
    poll: Future[None] | None = None
    unhealthy_since: float | None = None
    recorded: tuple[str, str] = node_state.READY, ""
    unanswered: bool = False
    failure: NodeFailure | None = None


class NodeHealthMonitor:
    """See the module. A node reported lost stays lost. An unreachable API yields no result."""

    def __init__(self, api: TpuApi, resource_inventory: ResourceInventory, settings: TpuSettings) -> None:
        self._api = api
        self._resource_inventory = resource_inventory
        self._settings = settings
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="tpu-watch")
        self._lock = threading.Lock()
        self._by_entry: dict[int, _NodeHealth] = {}

    def failure(self, entry: ResourceEntry, addresses: list[str], *, last: bool = False) -> NodeFailure | None:
        """Return the reason that the device is unusable; None: it is usable, or nothing is known.

        Args:
            addresses: Those of its hosts that the job uses.
            last: The job has failed: check once more now, its device may be the cause.
        """
        with self._lock:
            health = self._by_entry.setdefault(entry.id, _NodeHealth(time.monotonic()))
            due = last or time.monotonic() - health.polled_at >= times.WATCH_SECONDS
            if health.failure is None and due and (health.poll is None or health.poll.done()):
                health.polled_at = time.monotonic()
                health.poll = self._pool.submit(self._check, entry, addresses, health, last=last)
            check = health.poll
        if last and check is not None:
            try:
                check.result(min(_LAST_CHECK_SECONDS, times.TIMEOUT_SECONDS))
            except TimeoutError:
                logger.info("tpu_last_check_not_answered", extra={"resource": entry.name})
        return health.failure

    def forget(self, entry: ResourceEntry) -> None:
        """Stop checking this device."""
        with self._lock:
            self._by_entry.pop(entry.id, None)

    def _check(self, entry: ResourceEntry, addresses: list[str], health: _NodeHealth, *, last: bool) -> None:
        try:
            node = self._api.node(entry.zone, entry.cloud_id)
            failure = self._permanent_failure(entry, node)
            if failure is None and node is not None:
                failure = node_state.moved(node, addresses) or self._lasting_failure(node, health, last=last)
            if node is not None:
                self._record_state(entry, node, health)
            else:
                self._resource_inventory.record_billing(entry, until=time.time())
        except (ApiError, StoreUnavailable) as error:
            logger.info("tpu_not_checked", extra={"resource": entry.name, "error": str(error)})
            health.polled_at += getattr(error, "delay", 0.0)
            if isinstance(error, ApiError) and not health.unanswered:
                health.unanswered = True
                detail = f"not checked since {datetime.now(UTC):%H:%M:%S} UTC: {error}"
                with suppress(StoreUnavailable):
                    self._resource_inventory.update(entry, state=health.recorded[0], detail=detail)
            return
        except Exception:  # an error in a pool's thread would be lost otherwise
            logger.exception("tpu_check_failed")
            return
        health.failure = failure

    def _permanent_failure(self, entry: ResourceEntry, node: Node | None) -> NodeFailure | None:
        failure = node_state.permanent_failure(node) if node is not None else node_state.deleted_node(entry.name)
        if failure is None or entry.kind != QUEUED:
            return failure
        queued = self._api.queued(entry.zone, entry.cloud_id)
        return (node_state.suspension(queued) if queued is not None else None) or failure

    def _lasting_failure(self, node: Node, health: _NodeHealth, *, last: bool) -> NodeFailure | None:
        """Return the problem of a node that is unhealthy for too long or, after a failed job, unhealthy at all."""
        failure = node_state.temporary_failure(node)
        if failure is None:
            health.unhealthy_since = None
            return None
        health.unhealthy_since = health.unhealthy_since or time.monotonic()
        return failure if last or time.monotonic() - health.unhealthy_since >= times.UNHEALTHY_SECONDS else None

    def _record_state(self, entry: ResourceEntry, node: Node, health: _NodeHealth) -> None:
        if health.unanswered or health.recorded != (node.state, node.health):
            health.unanswered = False
            self._resource_inventory.update(entry, state=node.state, health=node.health, detail=node.health_detail)
            record_billing(self._resource_inventory, entry, node)
            health.recorded = (node.state, node.health)
