"""The row of a worker in the list of workers, which is of one living host."""

import logging
import time

from core.errors import StoreUnavailable, WorkerNameTaken
from core.jobs.scheduling import workers
from core.jobs.scheduling.claims import WorkerOffer
from worker.context import WorkerContext
from worker.home import host_id
from worker.service_link.link import Refused, TokenRefused

logger = logging.getLogger(__name__)

_MISSED_HEARTBEATS = 3  # after which the host of a name counts as gone, and another one may register under it
_PAUSE_SECONDS = 5.0


class Registration:
    def __init__(self, context: WorkerContext, slots: int) -> None:
        self._context = context
        self._slots = slots
        self._host_id = host_id(context.settings.root)
        self._silent_seconds = _MISSED_HEARTBEATS * context.settings.worker.heartbeat_seconds
        self._refused_at: float | None = None

    @property
    def is_refused_for_good(self) -> bool:
        """Return whether the other host of this name has sent heartbeats since this one was first refused.

        A host that has restarted is refused at first, too: for what it was before.
        """
        waited = 0.0 if self._refused_at is None else time.monotonic() - self._refused_at
        return waited > self._silent_seconds + _PAUSE_SECONDS

    def register(self, offer: WorkerOffer) -> None:
        """Register the worker. Raises `WorkerNameTaken`: another host of its name sends heartbeats."""
        try:
            self._record_host(offer)
            self._context.write(
                lambda session: workers.register(
                    session, offer, boot_id=self._host_id, slots=self._slots, silent_seconds=self._silent_seconds
                )
            )
        except WorkerNameTaken as error:
            if self._refused_at is None:
                logger.warning("worker_name_taken", extra={"why": error.message})
                self._refused_at = time.monotonic()
            raise
        self._refused_at = None

    def _record_host(self, offer: WorkerOffer) -> None:
        """Let the service record the host of a worker whose database role may not say which host it is."""
        try:
            if self._context.link is not None:
                self._context.link.record_host(offer.host, self._silent_seconds)
        except TokenRefused:
            raise
        except Refused as error:
            raise WorkerNameTaken(error.message) from error
        except StoreUnavailable:
            pass  # it need not answer where the host is as it was

    def send_heartbeat(self, offer: WorkerOffer) -> dict[str, workers.HeartbeatResult]:
        """Send a heartbeat. Raises `WorkerNotFound`: this host has to register again."""
        return self._context.write(lambda session: workers.heartbeat(session, offer, boot_id=self._host_id))
