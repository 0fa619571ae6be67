"""The outputs of an attempt whose command has ended: their last part is stored, and they are closed."""

import time
from collections.abc import Sequence
from typing import NamedTuple

from sqlalchemy.orm import Session

from core.db.models.jobs import Job
from core.errors import StoreUnavailable
from core.formatting import MIB
from core.jobs import lifecycle, projects, queries
from core.jobs.guarded_updates import set_output_sizes
from core.jobs.tracking import job_notes
from core.storage.artifacts.store import Closing
from worker.attempt.outputs.recorder import OutputRecorder
from worker.attempt.scratch import Scratch
from worker.context import WorkerContext
from worker.runner.control_files import read_control

CHECK_SECONDS = 1.0


class CollectedOutputs(NamedTuple):
    """Stored output of an attempt: state of its artifacts, bytes of its job's log and of its artifacts, notes on it."""

    artifacts_state: str
    log_bytes: int | None = None
    artifact_bytes: int | None = None
    notes: Sequence[str] = ()

    def record(self, session: Session, job: Job) -> None:
        for text in self.notes:
            job_notes.add(session, job, text)
        set_output_sizes(session, job, log_bytes=self.log_bytes, artifact_bytes=self.artifact_bytes)


class Collection:
    """Stores what an attempt has left, within the disk quotas, until it is done or a user stops waiting for it."""

    def __init__(self, context: WorkerContext, job: Job, scratch: Scratch) -> None:
        self._context = context
        self._job, self._scratch = job, scratch
        self._check_at = time.monotonic() + CHECK_SECONDS
        self._stopped = False

    def store(self, *, unchanged: bool = False) -> CollectedOutputs:
        """Store everything; may be repeated. `unchanged`: there is nothing to store in the workspace."""
        job, scratch = self._job, self._scratch
        if not scratch.control.is_dir() or job.reason == "service_silent":
            return CollectedOutputs(job.artifacts_state)
        with OutputRecorder(self._context, job, scratch) as recorder:
            log_bytes = recorder.finish()
        started = read_control(scratch.control, "started") is not None
        artifacts, is_filled = scratch.artifacts, scratch.may_have_artifacts()
        if not started and not (is_filled and artifacts.is_dir()):  # those of an earlier attempt are still the latest
            return CollectedOutputs(job.artifacts_state, log_bytes)
        max_bytes = self._max_bytes() if job.spec.outputs or is_filled else None
        collects = started and (job.spec.outputs or not unchanged)
        skipped, texts = (
            scratch.collect_outputs(job.handle, job.spec.outputs, max_bytes, self.stopped) if collects else ([], [])
        )
        closing = Closing(skipped, max_bytes, self.stopped)
        manifest = self._context.artifacts.close(job.id, job.attempt, artifacts, closing)
        state = manifest.state if manifest.files or manifest.folders or manifest.skipped else "none"
        return CollectedOutputs(state, log_bytes, manifest.bytes, texts)

    def _max_bytes(self) -> int | None:
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
