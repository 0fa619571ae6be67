"""The record of exec sessions in their jobs' events: who did what, when, for how long, with which result."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy.orm import Session

from core.catalogue.backends import capabilities_of
from core.db.models.jobs import Job
from core.errors import JobNotEnterable
from core.jobs import queries
from core.jobs.guarded_updates import add_event
from core.jobs.states import JobState

OPENED, CLOSED = "exec_opened", "exec_closed"  # kinds of the events
ENTERABLE = frozenset({JobState.RUNNING, JobState.KEPT})
_MAX_COMMAND = 1000


@dataclass(frozen=True, slots=True)
class ExecSession:
    id: str
    key_id: str
    key_name: str
    action: str

    def describe(self) -> str:
        return f"{self.id}: {self.action}, by API key {self.key_name!r} ({self.key_id})"


def describe_command(command: Sequence[str], *, tty: bool) -> str:
    text = shlex.join(command)
    shown = text if len(text) <= _MAX_COMMAND else f"{text[:_MAX_COMMAND]}…"
    return f"{'terminal' if tty else 'command'} {shown}"


def enterable_job(session: Session, job_id: str) -> Job:
    job = queries.get(session, job_id)
    if not capabilities_of(job.backend).exec:
        raise JobNotEnterable(
            f"Job {job_id} runs on the backend {job.backend!r}, which does not support exec sessions."
        )
    if job.state not in ENTERABLE or job.stop_requested_at is not None:
        now = "is being stopped" if job.state in ENTERABLE else f"is not running, but {job.state}"
        raise JobNotEnterable(f"Job {job_id} {now}. Only a running job can be entered.")
    return job


def record_opened(session: Session, job: Job, opened: ExecSession) -> None:
    add_event(session, job, OPENED, detail=opened.describe(), actor=opened.key_id)


def record_closed(session: Session, job: Job, closed: ExecSession, *, result: str, seconds: float) -> None:
    detail = f"{closed.describe()}: {result}, after {seconds:.1f} s"
    add_event(session, job, CLOSED, detail=detail, actor=closed.key_id)
