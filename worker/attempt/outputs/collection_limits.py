"""Limits of collecting an attempt's outputs: disk quotas, and a user who stops waiting."""

import time

from core.db.models.jobs import Job
from core.errors import StoreUnavailable
from core.formatting import MIB
from core.jobs import lifecycle, projects, queries
from worker.context import WorkerContext

CHECK_SECONDS = 1.0


class CollectionLimits:
    def __init__(self, context: WorkerContext, job: Job) -> None:
        self._context = context
        self._job = job
        self._check_at = time.monotonic() + CHECK_SECONDS
        self._stopped = False

    def max_bytes(self) -> int | None:
        """Return the bytes of artifacts that the quotas of job and project still allow; None: neither sets a limit."""
        limits = self._context.settings.disk
        with self._context.database.read() as session:
            left = projects.remaining_bytes(session, queries.project(session, self._job.project_id), limits.project_mb)
        limits_set = [limit for limit in (limits.job_mb * MIB or None, left) if limit is not None]
        return min(limits_set, default=None)

    def stopped(self) -> bool:
        """Return whether a stop was requested after the command had ended; cheap to call often."""
        if not self._stopped and time.monotonic() >= self._check_at:
            self._check_at = time.monotonic() + CHECK_SECONDS
            try:
                with self._context.database.read() as session:
                    self._stopped = lifecycle.stop_follows_end(session, self._job)
            except StoreUnavailable:
                return False
        return self._stopped
