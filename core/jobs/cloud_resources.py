"""Cloud resources, recorded before they are requested and until they are known to be deleted.

Only one attempt at a time may hold a name; the database enforces it, so two jobs never share a node of a pool.
"""

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import ForeignKey, Index, String, Text, select, text
from sqlalchemy.orm import Mapped, Session, mapped_column

from core.db.database import Base, UtcDateTime, now
from core.db.models.jobs import BigId, Job

_OPEN = text("gone_at IS NULL")


class CloudResource(Base):
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


def list_open(session: Session) -> list[CloudResource]:
    """Return all resources that are not known to be deleted."""
    return list(
        session.scalars(select(CloudResource).where(CloudResource.gone_at.is_(None)).order_by(CloudResource.id))
    )


def billed_seconds(session: Session, jobs: Sequence[Job]) -> dict[str, float]:
    """Return the billed seconds of these jobs, over all attempts; jobs without resources are left out."""
    if not jobs:
        return {}
    until = select(now()).scalar_subquery()
    query = select(
        CloudResource.job_id, CloudResource.billed_at, CloudResource.deleting_at, CloudResource.gone_at, until
    ).where(CloudResource.job_id.in_([job.id for job in jobs]))
    seconds: dict[str, float] = {}
    for job_id, billed_at, deleting_at, gone_at, current in session.execute(query):
        duration = 0.0 if billed_at is None else ((deleting_at or gone_at or current) - billed_at).total_seconds()
        seconds[job_id] = seconds.get(job_id, 0.0) + max(0.0, duration)
    return seconds


def resource_billed_seconds(resource: CloudResource, current: datetime) -> float:
    """Return the seconds for which a resource has been billed by now."""
    if resource.billed_at is None:
        return 0.0
    until = resource.deleting_at or resource.gone_at or current
    return max(0.0, (until - resource.billed_at).total_seconds())
