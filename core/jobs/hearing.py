"""Whether messages through the broker reach a worker."""

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from core.db import now
from core.jobs.models import Worker


def note_heard(session: Session, worker: str) -> None:
    """A message came to this worker."""
    session.execute(update(Worker).where(Worker.name == worker).values(heard_at=now()))


def heard_lately(session: Session, worker: str, seconds: float) -> bool | None:
    """Whether a message came to this worker in so many seconds; None if none ever did, or there is no such worker."""
    return session.scalar(select(Worker.heard_at >= now(-seconds)).where(Worker.name == worker))
