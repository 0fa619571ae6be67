import threading
import time

from sqlalchemy.orm import Session

from core.jobs import queries

_MANY_JOBS = 10_000
_CACHE_SECONDS = 30.0


class JobCounts:
    """Number of jobs by project; with very many jobs, the numbers may be half a minute old."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[str, int] = {}
        self._until = 0.0

    def get(self, session: Session) -> dict[str, int]:
        if queries.last_seq(session) < _MANY_JOBS:
            return queries.job_counts(session)
        with self._lock:
            if time.monotonic() >= self._until:
                self._counts = queries.job_counts(session)
                self._until = time.monotonic() + _CACHE_SECONDS
            return self._counts
