"""Limits of collecting an attempt's outputs: disk quotas, and a user who stops waiting."""

import time

from core.db.models.jobs import Job
from core.errors import StoreUnavailable
from core.formatting import MIB
from core.jobs import queries, storage_quota
from worker.context import Host

_LOOK_SECONDS = 1.0


class Bounds:
    """Limits of one collection.

    Args:
        host: The stores.
        job: The job, whose command has ended.
    """

    def __init__(self, host: Host, job: Job) -> None:
        self._host = host
        self._job = job
        self._look_at = time.monotonic() + _LOOK_SECONDS
        self._stopped = False

    def max_bytes(self) -> int | None:
        """Return the bytes of artifacts that the quotas of job and project still allow; None if neither sets a limit.

        Raises:
            StoreUnavailable: The database does not answer.
        """
        limits = self._host.settings.disk
        with self._host.database.read() as session:
            left = storage_quota.left_bytes(session, queries.project(session, self._job.project_id), limits.project_mb)
        known = [one for one in (limits.job_mb * MIB or None, left) if one is not None]
        return min(known, default=None)

    def stopped(self) -> bool:
        """Return whether a stop was requested after the command had ended; cheap to call often."""
        if not self._stopped and time.monotonic() >= self._look_at:
            self._look_at = time.monotonic() + _LOOK_SECONDS
            try:
                with self._host.database.read() as session:
                    row = queries.row(session, self._job.id)
            except StoreUnavailable:
                return False
            wished = None if row is None else row.stop_requested_at
            self._stopped = wished is not None and self._job.ended_at is not None and wished >= self._job.ended_at
        return self._stopped
