"""The row of an attempt's job: each change is one transaction, repeated until the database answers."""

from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from sqlalchemy.orm import Session

from core.db.models.jobs import Job
from core.errors import GradientError, LeaseLost, StoreUnavailable
from core.jobs import lifecycle, queries
from core.jobs.guarded_updates import with_values
from core.jobs.states import WAITING_PHASE, JobState
from worker.attempt.control import AttemptControl
from worker.attempt.monitor import end_time, with_exit_reason
from worker.attempt.outputs.recorder import open_log_shipper
from worker.backends.base import Exit, Handle
from worker.context import WorkerContext
from worker.runner.control_files import read_exit_time

DATABASE_PAUSE_SECONDS = 2.0


class _Ended(NamedTuple):
    """A command that has ended, of which nothing is recorded."""

    job: Job
    handle: Handle
    end: Exit
    at: float  # of `time.monotonic()`


class AttemptRecord:
    """`job`: the row as it was claimed or adopted; the attribute `job` holds its latest state."""

    def __init__(self, context: WorkerContext, job: Job, control: AttemptControl) -> None:
        self.job = job
        self._context = context
        self._requests = control
        self._scratch = context.scratch(job.id, job.attempt)
        self._backend = context.backend(job.backend)
        # once: some of a process depend on the number of keys
        self._capabilities = self._backend.capabilities.for_image(job.image)
        self._held_at = control.held_since, job.heartbeat_at or datetime.now(UTC)  # by the database's clock, too
        self._ended: _Ended | None = None
        self._set_waiting()

    def _leave_unrecorded(self, handle: Handle, end: Exit) -> None:
        """Have start and end of a command recorded by the transaction that closes its attempt."""
        at = end_time(end.at or read_exit_time(self._scratch.control), handle["began"])
        self._ended = _Ended(self.job, handle, with_exit_reason(end, self.job, self._scratch), at)
        values = {"exit_code": end.code, "reason": self._ended.end.reason or "process_lost"}
        self.job = with_values(self.job, state=JobState.FINISHING, handle=handle, **values)

    def _record_end(self, session: Session, ended: _Ended) -> None:
        clock, held_at = self._held_at
        began, at = (held_at + timedelta(seconds=moment - clock) for moment in (ended.handle["began"], ended.at))
        end, start = ended.end, (ended.handle, began)
        reason = end.reason or "process_lost"
        lifecycle.mark_finishing(
            session, ended.job, reason, detail=end.detail, exit_code=end.code, began=start, ended_at=at
        )

    def _transition(self, action: Callable[[Session], Job]) -> None:
        """Retry one write until the database answers; the job keeps running meanwhile."""
        uncertain = False

        def act(session: Session) -> Job:
            if self._ended is not None:
                self._record_end(session, self._ended)
            return action(session)

        while True:
            try:
                job = self._context.write(act)
            except LeaseLost:
                done = self._find_applied() if uncertain else None
                if done is None:
                    raise
                self.job = done
                return
            except StoreUnavailable:
                uncertain = True
                self._save_output()
                self._requests.pause(DATABASE_PAUSE_SECONDS)
            else:
                self._context.logs.notify_followers(job.id)
                self.job, self._ended = job, None
                self._requests.start_unrecorded = False
                self._set_waiting()
                return

    def _set_waiting(self) -> None:
        """Free the slot of a job that only waits, or that runs and ends where it uses nothing of this host."""
        runs_elsewhere = self._capabilities.own_queue and self.job.state is not JobState.STARTING
        self._requests.set_waiting(waiting=self.job.phase == WAITING_PHASE or runs_elsewhere)

    def _save_output(self) -> None:
        """Store the output so far: this host may be declared lost before the database is back."""
        if (self._scratch.control / "log").exists():
            with suppress(OSError, GradientError), open_log_shipper(self._context, self.job, self._scratch) as log:
                log.ship()

    def _find_applied(self) -> Job | None:
        """Return the row if our write was applied although its answer was lost; else None."""
        with self._context.database.read() as session:
            row = queries.get_row(session, self.job.id)
        return row if row is not None and row.lease == self.job.lease and row.state is not self.job.state else None
