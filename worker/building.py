"""Streams image-build output to the job's log."""

import logging
import threading
from types import TracebackType
from typing import Self

from core.jobs.models import Job
from core.logging import bind
from worker.host import Host
from worker.watch import Recorder
from worker.workspace import Scratch

logger = logging.getLogger(__name__)

_SHIP_SECONDS = 0.5


class BuildLog:
    """Ships the output of a build until the block is left; the watch ships the rest.

    Args:
        host: The stores.
        job: The job whose log the output goes to.
        scratch: The attempt's folders.
    """

    def __init__(self, host: Host, job: Job, scratch: Scratch) -> None:
        self._host = host
        self._job = job
        self._scratch = scratch
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"build-log-{job.id}", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        bind(**self._job.log_context())
        try:
            with Recorder(self._host, self._job, self._scratch) as recorder:
                while not self._ended.wait(_SHIP_SECONDS):
                    if recorder.ship():
                        self._host.logs.nudge(self._job.id)
        except Exception:  # the build goes on; at the latest, closing the attempt ships the whole log
            logger.warning("build_log_not_shipped", exc_info=True)
