"""Notes on a job and its attempts, for its user: facts that did not change how it ended."""

from collections.abc import Collection

from sqlalchemy import bindparam, select
from sqlalchemy.orm import Session

from core.db.models.jobs import Event, Job
from core.jobs.guarded_updates import add_event, storable_text
from core.jobs.spec.guards import EVENT as GUARD
from core.jobs.spec.job_spec import JobSpec

WANDB, MLFLOW = "WANDB_", "MLFLOW_"
EVENT = "note"  # kind of the event that is a note
_BEFORE_ATTEMPTS = 0
_NOTES = (
    select(Event.job_id, Event.attempt, Event.detail)
    .where(Event.job_id.in_(bindparam("ids", expanding=True)), Event.kind == EVENT)
    .order_by(Event.id)
)


def add(session: Session, job: Job, text: str) -> None:
    """Record a note on the job's current attempt, or on the whole job if none has started yet."""
    add_event(session, job, EVENT, detail=text)


def uses_tracker(spec: JobSpec, prefixes: tuple[str, ...] = (WANDB, MLFLOW)) -> bool:
    """Return whether the job's variables are of a tracker; links to its runs become notes."""
    return any(name.startswith(prefixes) for name in spec.env_vars)


def add_firing(session: Session, job: Job, reason: str | None, detail: str, about: str) -> None:
    """Record what a guard of the job's current attempt found, unless another event begins with what it is about.

    Without a reason it is a note.
    """
    kind, begins = GUARD if reason else EVENT, Event.detail.startswith(storable_text(about), autoescape=True)
    same = Event.job_id == job.id, Event.attempt == job.attempt, Event.kind == kind, begins
    if session.scalar(select(Event.id).where(*same).limit(1)) is None:
        add_event(session, job, kind, reason=reason, detail=detail)


def notes_of(session: Session, jobs: Collection[Job]) -> dict[str, list[str]]:
    """Return the notes on these jobs and their latest attempts, by job id.

    No query unless a job has ended, is a clone, has nodes, names a container or a tracker: others have none yet.
    """
    may_have = (
        job
        for job in jobs
        if job.ended
        or job.parent_id is not None
        or job.nodes is not None
        or job.spec.container is not None
        or uses_tracker(job.spec)
    )
    attempts = {job.id: job.attempt for job in may_have}
    if not attempts:
        return {}
    notes: dict[str, list[str]] = {}
    for job_id, attempt, text in session.execute(_NOTES, {"ids": list(attempts)}):
        if attempt in {_BEFORE_ATTEMPTS, attempts[job_id]} and text:
            notes.setdefault(job_id, []).append(text)
    return notes
