"""Notes on an attempt, for its user: facts that did not change how it ended."""

from collections.abc import Collection

from sqlalchemy import select
from sqlalchemy.orm import Session

from core.catalogue.backends import capabilities_of
from core.db.models.jobs import Event, Job
from core.jobs.guarded_updates import add_event

EVENT = "note"
"""Kind of the event that is a note."""


def add(session: Session, job: Job, text: str) -> None:
    """Record a note on the job's current attempt."""
    add_event(session, job, EVENT, detail=text)


def unused_container(backend: str, container: str | None) -> list[str]:
    """Return a note if a backend runs its jobs without the container that was asked for; else nothing."""
    if container is None or capabilities_of(backend).containers:
        return []
    text = (
        f"The container {container} is not used: machine types are simulated on this server, by processes with the "
        "server's own programs. List Python packages in requirements.txt, or have the server run jobs in Docker "
        "(docs/deploy.md)."
    )
    return [text]


def notes_of(session: Session, jobs: Collection[Job]) -> dict[str, list[str]]:
    """Return the notes on the latest attempts of these jobs, by job id; no query unless one has ended."""
    attempts = {job.id: job.attempt for job in jobs if job.ended}
    if not attempts:
        return {}
    found: dict[str, list[str]] = {}
    query = select(Event.job_id, Event.attempt, Event.detail).where(Event.job_id.in_(attempts), Event.kind == EVENT)
    for job_id, attempt, text in session.execute(query.order_by(Event.id)):
        if attempt == attempts[job_id] and text:
            found.setdefault(job_id, []).append(text)
    return found
