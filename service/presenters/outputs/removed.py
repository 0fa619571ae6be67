"""Outputs deleted by a retention policy: their public form, and the refusal to read them."""

from typing import Any

from sqlalchemy.orm import Session

from core.db.models.jobs import Job
from core.errors import OutputRemoved
from core.storage import retention
from core.storage.retention import OutputKind, RecordedRemoval
from service.schemas.base import ErrorView
from service.schemas.jobs import RemovedView

REMOVED_RESPONSE: dict[int | str, dict[str, Any]] = {
    410: {"model": ErrorView, "description": "Deleted by a policy; the message says when and by which."}
}
"""OpenAPI declaration of the refusal."""


def removed_view(removed: RecordedRemoval) -> RemovedView:
    """Convert a deletion to its public form: what was deleted, when, and by which policy."""
    return RemovedView(what=removed.kind.value, at=removed.at, message=removed.message)


def find_removed(session: Session, job: Job, kind: OutputKind) -> RemovedView | None:
    removals = retention.recorded_removals(session, [job]).get(job.id, ())
    return next((removed_view(removal) for removal in removals if removal.kind is kind), None)


def check_not_removed(session: Session, job: Job, kind: OutputKind) -> None:
    removed = find_removed(session, job, kind)
    if removed is not None:
        raise OutputRemoved(f"{removed.message} Removed at {removed.at:%Y-%m-%d %H:%M} UTC.")
