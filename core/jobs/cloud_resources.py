"""Cloud resources, recorded before they are requested and until they are known to be deleted.

Only one attempt at a time may hold a name; the database enforces it, so two jobs never share a node of a pool.
"""

import json
from datetime import datetime

from sqlalchemy import Double, ForeignKey, Index, String, Text, func, or_, select, text
from sqlalchemy.orm import Mapped, Session, mapped_column

from core.db.database import Base, UtcDateTime, now
from core.db.models.jobs import BigId, Job

_OPEN = text("gone_at IS NULL")
_SECONDS_PER_HOUR = 3600
REFUSAL, UNOWNED = "cloud-refusal", "cloud-unowned"


class InstallationValue(Base):
    """A value that belongs to the installation as a whole, such as its name in the cloud project."""

    __tablename__ = "installation"

    name: Mapped[str] = mapped_column(String(64), primary_key=True)
    value: Mapped[str] = mapped_column(Text)


class CloudResource(Base):
    """A billed cloud resource, created or held for one attempt of a job."""

    __tablename__ = "resources"

    id: Mapped[int] = mapped_column(BigId, primary_key=True, autoincrement=True)
    kind: Mapped[str] = mapped_column(String(16))
    """tpu_node, tpu_queued (a queued resource and its node) or tpu_pool (an existing node)."""
    name: Mapped[str] = mapped_column(String(255))  # name in the cloud: `<zone>/<id>`
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"))
    attempt: Mapped[int]
    host: Mapped[str] = mapped_column(String(255))  # the machine whose worker requested it
    state: Mapped[str] = mapped_column(String(32))
    """`intended`, then as the cloud names it (READY, WAITING_FOR_RESOURCES, …), `deleting`, `gone`."""
    health: Mapped[str | None] = mapped_column(String(32))
    detail: Mapped[str | None] = mapped_column(Text)
    operation: Mapped[str | None] = mapped_column(String(255))  # name of the cloud operation that creates it
    intended_at: Mapped[datetime] = mapped_column(UtcDateTime)
    seen_at: Mapped[datetime | None] = mapped_column(UtcDateTime)  # time of the cloud's last status
    billed_at: Mapped[datetime | None] = mapped_column(UtcDateTime)  # start of billing
    deleting_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    """Time at which the cloud accepted the request to delete it; it is billed until it is deleted."""
    gone_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    billed_until: Mapped[datetime | None] = mapped_column(UtcDateTime)
    """End of billing, if it was seen before the resource was known to be deleted."""
    price_per_hour: Mapped[float | None] = mapped_column(Double)
    """Price in US dollars, as of spot capacity; NULL: that of the job's machine type."""

    __table_args__ = (
        Index("uq_resources_open", "name", unique=True, sqlite_where=_OPEN, postgresql_where=_OPEN),
        Index("ix_resources_job", "job_id", "attempt"),
    )


def find_refusal(session: Session) -> str | None:
    """Return since when Google refuses the workers, and in which words; None: it does not, as far as they know."""
    return session.scalar(select(InstallationValue.value).where(InstallationValue.name == REFUSAL))


def find_unowned(session: Session) -> dict[str, str]:
    """Return the owners of what has the service's label in the cloud and no record here, by name."""
    text = session.scalar(select(InstallationValue.value).where(InstallationValue.name == UNOWNED))
    return json.loads(text) if text else {}


def list_open(session: Session) -> list[CloudResource]:
    return list(
        session.scalars(select(CloudResource).where(CloudResource.gone_at.is_(None)).order_by(CloudResource.id))
    )


def of_attempt(session: Session, job: Job) -> list[CloudResource]:
    """Return the machines of a job's current attempt."""
    of_job = CloudResource.job_id == job.id, CloudResource.attempt == job.attempt
    return list(session.scalars(select(CloudResource).where(*of_job)))


def total_cost(session: Session, since: datetime) -> float:
    """Return the US dollars that all resources have cost since then: those of deleted jobs too, but none simulated."""
    current = session.scalars(select(now())).one()
    ended_at = func.coalesce(CloudResource.billed_until, CloudResource.gone_at)
    query = (
        select(CloudResource, Job.price_per_hour)
        .join(Job, Job.id == CloudResource.job_id)
        .where(~Job.simulated, CloudResource.billed_at.is_not(None), or_(ended_at.is_(None), ended_at > since))
    )
    return sum(cost(resource, price, current, since) for resource, price in session.execute(query))


def cost(resource: CloudResource, job_price: float, current: datetime, since: datetime | None = None) -> float:
    """Return the US dollars that a resource has cost by now. `job_price`: its price per hour, unless it has its own."""
    if resource.billed_at is None:
        return 0.0
    until = resource.billed_until or resource.gone_at or current
    begin = resource.billed_at if since is None else max(since, resource.billed_at)
    price = job_price if resource.price_per_hour is None else resource.price_per_hour
    return max(0.0, (until - begin).total_seconds()) * price / _SECONDS_PER_HOUR
