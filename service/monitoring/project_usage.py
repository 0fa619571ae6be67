"""Numbers of projects that are counted now and then: their jobs, and the disk space of their storage for quotas."""

import threading
import time

from sqlalchemy.orm import Session

from core.jobs import queries
from core.storage.disk_usage import measure
from core.storage.shared.folders import SharedStorage
from core.storage.shared.project_files import ProjectFiles

_SECONDS = 30.0
_MANY_JOBS = 10_000
_CACHE_SECONDS = 30.0


class StorageUsage:
    """Bytes in each project's storage: measured at most twice a minute, because a folder may have many files.

    `processes`: number of API processes: each takes it that the others store as much as itself between measurements.
    """

    def __init__(self, storage: SharedStorage, processes: int = 1) -> None:
        self._storage = storage
        self._processes = processes
        self._lock = threading.Lock()
        self._measured: dict[str, tuple[float, int]] = {}

    def measure(self, project_id: str) -> int:
        """Return the bytes of a project's storage, with what this process stored since the last measurement."""
        with self._lock:
            until, size = self._measured.get(project_id, (0.0, 0))
        if time.monotonic() < until:
            return size
        if self._storage.uploaded is not None:
            size = ProjectFiles(self._storage, project_id).count_bytes()
        else:
            size = sum(entry.bytes for entry in measure(self._storage.of_project(project_id)).entries.values())
        with self._lock:
            self._measured[project_id] = time.monotonic() + _SECONDS, size
        return size

    def add(self, project_id: str, size: int) -> None:
        with self._lock:
            until, before = self._measured.get(project_id, (0.0, 0))
            self._measured[project_id] = until, before + size * self._processes

    def forget(self, project_id: str) -> None:
        """Measure anew for the next file, because something was deleted."""
        with self._lock:
            self._measured.pop(project_id, None)


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
