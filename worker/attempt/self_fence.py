"""Ends jobs that other workers will restart, on a host cut off from the database: a job must not run twice."""

import logging
import time
from collections.abc import Iterable

from core.catalogue.backends import capabilities_of
from core.db.models.jobs import Job
from worker.attempt.control import AttemptControl
from worker.backends.base import Backend, Handle
from worker.context import WorkerContext
from worker.runner.control_files import read_exit_code, write_control_file

logger = logging.getLogger(__name__)

CONTACT_LOST_GRACE_SECONDS = 30.0
"""Longest grace period of a job on a cut-off host, in seconds; the settings leave room for it."""

CONTACT_LOST_FILE = "contact_lost"
"""Control file of a job that is ended here, for a worker that adopts it: its own exit code says nothing then."""

_FROZEN_SECONDS = 30.0  # time between two checks after which this process, or its whole machine, was frozen meanwhile


class SelfFence:
    """Checked repeatedly by a thread of its own: what blocks the worker's loop does not block it.

    Attempts without retries keep running; their record is updated when the database returns. One whose start is not
    recorded yet is ended, too: for other workers it never began. A watched job is ended by its watch. A job whose
    attempt waits for the database, for example to record its start, has no watch and is ended here.

    After a freeze, the database is asked first: another worker may hold the jobs by now, also on this host.
    """

    def __init__(self, context: WorkerContext) -> None:
        self._context = context
        self._last_contact_at = self._checked_at = time.monotonic()
        self._kill_at: dict[str, float] = {}

    def record_contact(self, requested_at: float) -> None:
        """Record that the database answered a query that was sent at this time (monotonic clock)."""
        self._last_contact_at = requested_at

    def check(self, running: Iterable[tuple[Job, AttemptControl]]) -> None:
        now = time.monotonic()
        frozen, self._checked_at = now - self._checked_at > _FROZEN_SECONDS, now
        if now - self._last_contact_at < self._context.settings.worker.self_fence_seconds:
            self._kill_at.clear()
            return
        if frozen:
            return  # until the next check, a heartbeat is due
        repeatable = [
            (job, signals)
            for job, signals in running
            if (job.max_attempts > 1 or signals.start_unrecorded) and not capabilities_of(job.backend).own_queue
        ]
        # Those with a watch first: ending the others waits for engines, and for the database.
        for job, signals in sorted(repeatable, key=lambda item: not item[1].monitored):
            ends = signals.monitored or self._end_job(job)
            if ends and not signals.contact_lost:
                logger.error("job_cut_off", extra=job.log_context())
                signals.report_contact_lost()

    def _end_job(self, job: Job) -> bool:
        """End a job without a watch; return False if there is nothing to end: it is not started yet, or has ended."""
        ended = False
        if read_exit_code(self._context.scratch(job.id, job.attempt).control) is not None:
            return False
        try:
            backend = self._context.backend(job.backend)
            for handle in backend.owned():
                if (handle["job_id"], handle["attempt"]) == (job.id, job.attempt):
                    ended = True
                    self._stop_or_kill(backend, handle, job)
        except Exception:  # the next check may succeed
            logger.warning("cut_off_not_ended", exc_info=True, extra=job.log_context())
            return True
        return ended

    def _stop_or_kill(self, backend: Backend, handle: Handle, job: Job) -> None:
        now = time.monotonic()
        if job.id not in self._kill_at:
            self._kill_at[job.id] = now + min(job.spec.stop_grace, CONTACT_LOST_GRACE_SECONDS)
            write_control_file(self._context.scratch(job.id, job.attempt).control, CONTACT_LOST_FILE, "ended")
            backend.signal(handle, grace=True)
        elif now >= self._kill_at[job.id]:
            backend.signal(handle, grace=False)


def contact_lost_detail(context: WorkerContext) -> str:
    """Return how long there was no contact, for the reason of a job that is ended because of it."""
    return f"{context.settings.worker.self_fence_seconds / 60:.0f} minutes"
