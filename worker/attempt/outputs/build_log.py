import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from core.db.models.jobs import Job
from core.monitoring.logging import bind
from worker.attempt.monitor import OutputRecorder
from worker.attempt.scratch import Scratch
from worker.context import WorkerContext

logger = logging.getLogger(__name__)

_SHIP_SECONDS = 0.5


@contextmanager
def build_log(context: WorkerContext, job: Job, scratch: Scratch) -> Iterator[None]:
    """Ship the output of a build to the job's log until the block is left; the watch ships the rest."""
    ended = threading.Event()

    def ship() -> None:
        bind(**job.log_context())
        try:
            with OutputRecorder(context, job, scratch) as recorder:
                while not ended.wait(_SHIP_SECONDS):
                    if recorder.ship():
                        context.logs.notify_followers(job.id)
        except Exception:  # the build goes on; at the latest, closing the attempt ships the whole log
            logger.warning("build_log_not_shipped", exc_info=True)

    thread = threading.Thread(target=ship, name=f"build-log-{job.id}", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
