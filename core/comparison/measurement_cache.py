"""A cache of what was measured of ended jobs, whose metrics do not change any more."""

import threading
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Generic, TypeVar

from cachetools import LRUCache

from core.db.models.jobs import Job

T = TypeVar("T")

_MOST = 512
_SETTLING = timedelta(minutes=1)
"""Time after a job's end in which nothing of it is cached, for what is stored late."""


class MeasurementCache(Generic[T]):
    """The measurements of the jobs that were asked for last; for any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._entries: LRUCache[tuple[object, ...], T] = LRUCache(_MOST)

    def get(self, job: Job, current: datetime, inputs: tuple[object, ...], measure: Callable[[], T]) -> T:
        """Return what `measure` returns for a job and these inputs, or returned before if the job has ended."""
        if not job.ended or job.finished_at is None or current - job.finished_at < _SETTLING:
            return measure()
        key = (job.id, job.attempt, job.finished_at, job.logs_removed_at, *inputs)
        with self._lock:
            if key in self._entries:
                return self._entries[key]
        measured = measure()
        with self._lock:
            self._entries[key] = measured
        return measured
