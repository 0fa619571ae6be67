"""Records when broker messages last reached a worker."""

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from core.db import now
from core.jobs.models import Worker


def note_heard(session: Session, worker: str) -> None:
    """Record that a message reached this worker."""
    session.execute(update(Worker).where(Worker.name == worker).values(heard_at=now()))


def heard_lately(session: Session, worker: str, seconds: float) -> bool | None:
    """Return whether a message reached this worker within `seconds`; None if none ever did or the worker is unknown."""
    return session.scalar(select(Worker.heard_at >= now(-seconds)).where(Worker.name == worker))
