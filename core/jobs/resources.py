"""Cloud resources, recorded before they are requested and until they are known to be deleted.

Only one attempt at a time may hold a name; the database enforces it, so two jobs never share a node of a pool.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import ForeignKey, Index, String, Text, exists, or_, select, text, update
from sqlalchemy.orm import Mapped, Session, mapped_column

from core.db import Base, UtcDateTime, now
from core.ids import new_id
from core.jobs.models import BigId, Job
from core.jobs.moves import insert_once
from core.jobs.states import OWNED
from core.schema import SchemaInfo

_INSTALLATION = "installation"
_OPEN = text("gone_at IS NULL")


class Resource(Base):
    """A billed cloud resource, created or held for one attempt of a job."""

    __tablename__ = "resources"

    id: Mapped[int] = mapped_column(BigId, primary_key=True, autoincrement=True)
    kind: Mapped[str] = mapped_column(String(16))
    """tpu_node, tpu_queued (a queued resource and its node) or tpu_pool (an existing node)."""
    name: Mapped[str] = mapped_column(String(255))
    """Name in the cloud: `<zone>/<id>`."""
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"))
    attempt: Mapped[int]
    host: Mapped[str] = mapped_column(String(255))
    """The machine whose worker requested it."""
    state: Mapped[str] = mapped_column(String(32))
    """`intended`, then as the cloud names it (READY, WAITING_FOR_RESOURCES, …), `deleting`, `gone`."""
    health: Mapped[str | None] = mapped_column(String(32))
    detail: Mapped[str | None] = mapped_column(Text)
    operation: Mapped[str | None] = mapped_column(String(255))
    """Name of the cloud operation that creates it."""
    intended_at: Mapped[datetime] = mapped_column(UtcDateTime)
    seen_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    """Time of the cloud's last status."""
    billed_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    """Start of billing."""
    deleting_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    """Time at which the cloud accepted the request to delete it; billing is counted until then."""
    gone_at: Mapped[datetime | None] = mapped_column(UtcDateTime)

    __table_args__ = (
        Index("uq_resources_open", "name", unique=True, sqlite_where=_OPEN, postgresql_where=_OPEN),
        Index("ix_resources_job", "job_id", "attempt"),
    )


def installation(session: Session) -> str:
    """Return an id that tells this database's resources from those of others in the same cloud project."""
    first = insert_once(session.get_bind().dialect.name, SchemaInfo)
    session.execute(first.values(name=_INSTALLATION, value=new_id("g")))
    return session.scalars(select(SchemaInfo.value).where(SchemaInfo.name == _INSTALLATION)).one()


def intend(session: Session, kind: str, name: str, *, job_id: str, attempt: int, host: str) -> Resource | None:
    """Record a resource before it is requested; a repeat for the same attempt returns the same row.

    Returns:
        The row; None if another attempt holds the name.
    """
    made = insert_once(session.get_bind().dialect.name, Resource).values(
        kind=kind, name=name, job_id=job_id, attempt=attempt, host=host, state="intended", intended_at=now()
    )
    session.execute(made)
    held = session.scalars(select(Resource).where(Resource.name == name, Resource.gone_at.is_(None))).one_or_none()
    return held if held is not None and (held.job_id, held.attempt) == (job_id, attempt) else None


def note(session: Session, resource_id: int, **values: Any) -> None:  # noqa: ANN401 - column values
    """Record the cloud's status of a resource."""
    there = Resource.gone_at.is_(None) & Resource.deleting_at.is_(None)
    noted = update(Resource).where(Resource.id == resource_id, there)
    session.execute(noted.values(seen_at=now(), **values))


def billing(session: Session, resource_id: int) -> None:
    """Record the start of billing, once."""
    first = update(Resource).where(Resource.id == resource_id, Resource.billed_at.is_(None))
    session.execute(first.values(billed_at=now()))


def deleting(session: Session, resource_id: int, detail: str | None = None) -> None:
    """Mark as deleting: the cloud accepted the request."""
    first = update(Resource).where(Resource.id == resource_id, Resource.deleting_at.is_(None))
    session.execute(first.values(deleting_at=now(), state="deleting", **_known(detail)))


def gone(session: Session, resource_id: int, detail: str | None = None) -> None:
    """Mark as gone: it no longer exists, or is free for others."""
    over = update(Resource).where(Resource.id == resource_id, Resource.gone_at.is_(None))
    session.execute(over.values(gone_at=now(), state="gone", **_known(detail)))


def _known(detail: str | None) -> dict[str, str]:
    return {} if detail is None else {"detail": detail}


def of_attempt(session: Session, job_id: str, attempt: int) -> list[Resource]:
    """Return all resources of an attempt, oldest first."""
    asked = select(Resource).where(Resource.job_id == job_id, Resource.attempt == attempt)
    return list(session.scalars(asked.order_by(Resource.id)))


def open_on(session: Session, host: str) -> list[Resource]:
    """Return resources requested by workers of this machine, without those being deleted."""
    there = select(Resource).where(Resource.host == host, Resource.gone_at.is_(None), Resource.deleting_at.is_(None))
    return list(session.scalars(there.order_by(Resource.id)))


def all_open(session: Session) -> list[Resource]:
    """Return all resources that are not known to be gone."""
    return list(session.scalars(select(Resource).where(Resource.gone_at.is_(None)).order_by(Resource.id)))


def unowned(session: Session) -> list[Resource]:
    """Return resources that should be gone but may not be: no worker runs their attempt, or deletion was requested."""
    owned = exists().where(Job.id == Resource.job_id, Job.attempt == Resource.attempt, Job.state.in_(OWNED))
    left = select(Resource).where(Resource.gone_at.is_(None), or_(~owned, Resource.deleting_at.is_not(None)))
    return list(session.scalars(left.order_by(Resource.id)))


def billed_seconds(session: Session, jobs: Sequence[Job]) -> dict[str, float]:
    """Return the billed seconds of these jobs, over all attempts; jobs without resources are left out."""
    if not jobs:
        return {}
    until = select(now()).scalar_subquery()
    asked = select(Resource.job_id, Resource.billed_at, Resource.deleting_at, Resource.gone_at, until).where(
        Resource.job_id.in_([job.id for job in jobs])
    )
    seconds: dict[str, float] = {}
    for job_id, billed_at, deleting_at, gone_at, current in session.execute(asked):
        lasted = 0.0 if billed_at is None else ((deleting_at or gone_at or current) - billed_at).total_seconds()
        seconds[job_id] = seconds.get(job_id, 0.0) + max(0.0, lasted)
    return seconds


def billed(resource: Resource, current: datetime) -> float:
    """Return the seconds for which a resource has been billed by now."""
    if resource.billed_at is None:
        return 0.0
    until = resource.deleting_at or resource.gone_at or current
    return max(0.0, (until - resource.billed_at).total_seconds())
