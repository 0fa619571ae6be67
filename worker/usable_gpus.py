import logging
import time
from dataclasses import replace
from functools import partial

from core.jobs.scheduling import claims, workers
from worker.context import WorkerContext

logger = logging.getLogger(__name__)

REPORT_SECONDS = 10.0


class UsableGpus:
    """Selects the GPUs that a worker can give to jobs now; asked when a job is waiting.

    `taken`: those in use outside this service as recorded, and by what.
    """

    def __init__(self, context: WorkerContext) -> None:
        self._context = context
        self.taken: dict[str, str] = {}
        self._reported_at = 0.0

    def select(self, offer: claims.WorkerOffer) -> claims.WorkerOffer:
        """Return the offer without GPUs that are broken, or that something else uses."""
        if not offer.gpus:
            return offer
        with self._context.database.read() as session:
            broken = workers.gpu_faults(session, offer.worker)
            free = [gpu for gpu in claims.find_free_gpus(session, offer) if gpu not in broken]
        if faults := self._context.broken_gpus(free) if free else {}:
            new = self._context.write(partial(workers.add_gpu_faults, name=offer.worker, faults=faults))
            logger.error("gpus_broken", extra={"broken": new})
            broken |= new
        free = [gpu for gpu in free if gpu not in broken]
        taken = self._context.taken_gpus(free) if free else {}
        changed = taken.keys() != self.taken.keys()
        if changed:
            logger.warning("gpus_taken" if taken else "gpus_free", extra={"taken": taken})
        # A GPU's usage changes all the time, and not every change is worth a write.
        if changed or (taken != self.taken and time.monotonic() >= self._reported_at + REPORT_SECONDS):
            self._context.write(lambda session: workers.set_taken_gpus(session, offer.worker, taken))
            self.taken, self._reported_at = taken, time.monotonic()
        return replace(offer, gpus=tuple(gpu for gpu in offer.gpus if gpu not in taken.keys() | broken.keys()))
