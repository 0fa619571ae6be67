from datetime import datetime
from typing import Any

from sqlalchemy import JSON, ForeignKey, Index, String, Text
from sqlalchemy.orm import Mapped, mapped_column

from core.db.database import Base, UtcDateTime
from core.db.models.jobs import BigId
from core.jobs.spec.job_spec import JobSpec


class Schedule(Base):
    """A job that is created again and again, at the times of a cron expression."""

    __tablename__ = "schedules"

    seq: Mapped[int] = mapped_column(BigId, primary_key=True, autoincrement=True)  # order of creation
    id: Mapped[str] = mapped_column(String(16), unique=True)  # `sc` and 13 of [a-z0-9]
    project_id: Mapped[str] = mapped_column(ForeignKey("projects.id"))
    submitted_by: Mapped[str] = mapped_column(String(16))  # id of an API key; its jobs are submitted by it, too
    idempotency_key: Mapped[str | None] = mapped_column(String(255))
    request_sha256: Mapped[str | None] = mapped_column(String(64))  # as of a job
    cron: Mapped[str] = mapped_column(String(100))
    timezone: Mapped[str] = mapped_column(String(64))
    on_miss: Mapped[str] = mapped_column(String(8))
    on_overlap: Mapped[str] = mapped_column(String(8))
    spec_json: Mapped[dict[str, Any]] = mapped_column("spec", JSON)
    sealed: Mapped[str | None] = mapped_column(Text)  # `user:password` for the git server of its workspace
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    next_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    """The next time; None: suspended. Whoever moves it on creates the job of that time, in the same transaction."""
    refusal: Mapped[str | None] = mapped_column(Text)  # why the last time had no job; None: it had one
    refused_at: Mapped[datetime | None] = mapped_column(UtcDateTime)  # that time

    __table_args__ = (
        Index("ix_schedules_next_at", "next_at"),
        Index("uq_schedules_idempotency", "submitted_by", "idempotency_key", unique=True),
    )

    @property
    def spec(self) -> JobSpec:
        return JobSpec.from_json(self.spec_json)
