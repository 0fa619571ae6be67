"""Failed jobs whose machine is kept, so that their users can look."""

from contextlib import suppress

from sqlalchemy.orm import Session

from core.db.models.jobs import Job
from core.errors import StoreUnavailable
from core.jobs import kept_jobs
from worker.attempt.control import AttemptControl
from worker.attempt.outputs.collection import CollectedOutputs
from worker.context import WorkerContext

_CHECK_SECONDS = 1.0


def may_keep(context: WorkerContext, job: Job) -> bool:
    if job.spec.keep_on_fail is None:
        return False
    with context.database.read() as session:
        return kept_jobs.may_keep(session, job)


def keep(session: Session, job: Job, outputs: CollectedOutputs) -> Job:
    """Record the outputs of a failed job, and let its user look."""
    outputs.record(session, job)
    return kept_jobs.keep(session, job, artifacts_state=outputs.artifacts_state)


def wait_for_user(context: WorkerContext, job: Job, control: AttemptControl) -> None:
    """Let users enter a kept job until its time is over, or it is released."""
    with context.sessions.allowed(job):
        while not (control.stop_requested or control.contact_lost):
            with suppress(StoreUnavailable), context.database.read() as session:
                if kept_jobs.is_over(session, job):
                    return
            control.pause(_CHECK_SECONDS)
