"""Tables of comparisons: sets of jobs that run one program on several machine types."""

from datetime import datetime

from sqlalchemy import ForeignKey, Index, String, Text
from sqlalchemy.orm import Mapped, mapped_column

from core.db.database import Base, UtcDateTime
from core.db.models.jobs import BigId


class Comparison(Base):
    """A set of jobs that are compared, and the metric that they are judged by."""

    __tablename__ = "comparisons"

    seq: Mapped[int] = mapped_column(BigId, primary_key=True, autoincrement=True)  # order of creation
    id: Mapped[str] = mapped_column(String(16), unique=True)  # `c` and 13 of [a-z0-9]
    project_id: Mapped[str] = mapped_column(ForeignKey("projects.id"))
    submitted_by: Mapped[str] = mapped_column(String(16))  # id of an API key
    idempotency_key: Mapped[str | None] = mapped_column(String(255))
    request_sha256: Mapped[str | None] = mapped_column(String(64))
    """Digest of the request with the idempotency key; a different request with the same key is refused."""
    name: Mapped[str | None] = mapped_column(String(200))
    metric: Mapped[str | None] = mapped_column(String(200))  # name of the metric that tells how good the result is
    goal: Mapped[str] = mapped_column(String(3))  # `max` or `min`: the direction in which the metric improves
    target: Mapped[float | None]  # value of the metric to be reached
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    imported_from: Mapped[str | None] = mapped_column(String(2000))
    """Address of the installation that measured it, as its file tells; None: its jobs are here."""
    imported_jobs: Mapped[int | None]
    imported_program: Mapped[str | None] = mapped_column(String(64))
    """Digest of all options of the jobs; None if they differed in more than the machine type."""
    imported_file: Mapped[str | None] = mapped_column(Text, deferred=True)

    __table_args__ = (
        Index("ix_comparisons_project_id_seq", "project_id", "seq"),
        Index("uq_comparisons_idempotency", "submitted_by", "idempotency_key", unique=True),
    )


class ComparisonJob(Base):
    __tablename__ = "comparison_jobs"

    comparison_id: Mapped[str] = mapped_column(ForeignKey("comparisons.id"), primary_key=True)
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"), primary_key=True, index=True)
