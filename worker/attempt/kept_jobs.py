"""Failed jobs whose machine is kept, so that their users can look."""

from contextlib import suppress

from core.db.models.jobs import Job
from core.errors import StoreUnavailable
from core.jobs import keeping
from worker.attempt.control import AttemptControl
from worker.context import WorkerContext

_CHECK_SECONDS = 1.0


def may_keep(context: WorkerContext, job: Job) -> bool:
    if job.spec.keep_on_fail is None:
        return False
    with context.database.read() as session:
        return keeping.may_keep(session, job)


def wait_for_user(context: WorkerContext, job: Job, control: AttemptControl) -> None:
    """Let users enter a kept job until its time is over, or it is released."""
    with context.sessions.allowed(job):
        while not (control.stop_requested or control.contact_lost):
            with suppress(StoreUnavailable), context.database.read() as session:
                if keeping.is_over(session, job):
                    return
            control.pause(_CHECK_SECONDS)
