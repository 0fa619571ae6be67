"""Checks the TPUs in use periodically, in threads of its own: the API may take its time to answer."""

import logging
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from core.errors import StoreUnavailable
from core.settings.cloud import TpuSettings
from worker.backends.tpu import node_state
from worker.backends.tpu.api import ApiError, Node, TpuApi
from worker.backends.tpu.node_state import Trouble
from worker.backends.tpu.resource_log import POOL, QUEUED, Entry, Ledger

logger = logging.getLogger(__name__)

_THREADS = 4
_LAST_LOOK_SECONDS = 10.0


@dataclass(slots=True)
class _Watched:
    looked_at: float
    look: Future[None] | None = None
    ill_since: float | None = None
    noted: tuple[str, str] | None = None
    trouble: Trouble | None = None


class Watching:
    """See the module. A node reported lost stays lost. An unreachable API yields no result."""

    def __init__(self, api: TpuApi, ledger: Ledger, settings: TpuSettings) -> None:
        self._api = api
        self._ledger = ledger
        self._settings = settings
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="tpu-watch")
        self._lock = threading.Lock()
        self._watched: dict[int, _Watched] = {}

    def trouble(self, entry: Entry, *, last: bool = False) -> Trouble | None:
        """Return the reason that the device is unusable; None: it is usable, or nothing is known.

        Args:
            entry: The device's entry.
            last: The job has failed: check once more now, its device may be the cause.
        """
        with self._lock:
            watched = self._watched.setdefault(entry.id, _Watched(time.monotonic()))
            due = last or time.monotonic() - watched.looked_at >= self._settings.watch_seconds
            if watched.trouble is None and due and (watched.look is None or watched.look.done()):
                watched.looked_at = time.monotonic()
                watched.look = self._pool.submit(self._look, entry, watched, last=last)
            look = watched.look
        if last and look is not None:
            try:
                look.result(min(_LAST_LOOK_SECONDS, self._settings.timeout_seconds))
            except TimeoutError:
                logger.info("tpu_last_look_not_answered", extra={"resource": entry.name})
        return watched.trouble

    def forget(self, entry: Entry) -> None:
        """Stop checking this device."""
        with self._lock:
            self._watched.pop(entry.id, None)

    def _look(self, entry: Entry, watched: _Watched, *, last: bool) -> None:
        try:
            node = self._node(entry)
            trouble = self._lost(entry, node)
            if trouble is None and node is not None:
                trouble = self._ill(node, watched, last=last)
                self._note(entry, node, watched)
        except (ApiError, StoreUnavailable) as error:
            logger.info("tpu_not_looked_at", extra={"resource": entry.name, "error": str(error)})
            return
        except Exception:  # an error in a pool's thread would be lost otherwise
            logger.exception("tpu_look_failed")
            return
        watched.trouble = trouble

    def _node(self, entry: Entry) -> Node | None:
        node = self._api.node(entry.zone, entry.cloud_id)
        if node is None and entry.kind == POOL:
            return self._api.old_node(entry.zone, entry.cloud_id)
        return node

    def _lost(self, entry: Entry, node: Node | None) -> Trouble | None:
        trouble = node_state.lost(node) if node is not None else node_state.missing(entry.name)
        if trouble is None or entry.kind != QUEUED:
            return trouble
        queued = self._api.queued(entry.zone, entry.cloud_id)
        return (node_state.suspended(queued) if queued is not None else None) or trouble

    def _ill(self, node: Node, watched: _Watched, *, last: bool) -> Trouble | None:
        """Return the problem of a node that is unhealthy for too long or, after a failed job, unhealthy at all."""
        trouble = node_state.ill(node)
        if trouble is None:
            watched.ill_since = None
            return None
        watched.ill_since = watched.ill_since or time.monotonic()
        return trouble if last or time.monotonic() - watched.ill_since >= self._settings.unhealthy_seconds else None

    def _note(self, entry: Entry, node: Node, watched: _Watched) -> None:
        if watched.noted != (node.state, node.health):
            self._ledger.note(entry, state=node.state, health=node.health, detail=node.health_detail or None)
            watched.noted = (node.state, node.health)
