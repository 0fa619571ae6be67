from datetime import datetime

from sqlalchemy import Index, String, Text
from sqlalchemy.orm import Mapped, mapped_column

from core.db.database import Base, UtcDateTime
from core.db.models.templates import Template


class Schedule(Template, Base):
    """A job that is created again and again, at the times of a cron expression."""

    __tablename__ = "schedules"

    cron: Mapped[str] = mapped_column(String(100))
    timezone: Mapped[str] = mapped_column(String(64))
    on_miss: Mapped[str] = mapped_column(String(8))
    on_overlap: Mapped[str] = mapped_column(String(8))
    next_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    """The next time; None: suspended. Whoever moves it on creates the job of that time, in the same transaction."""
    refusal: Mapped[str | None] = mapped_column(Text)  # why the last time had no job; None: it had one
    refused_at: Mapped[datetime | None] = mapped_column(UtcDateTime)  # that time

    __table_args__ = (
        Index("ix_schedules_next_at", "next_at"),
        Index("uq_schedules_idempotency", "submitted_by", "idempotency_key", unique=True),
    )
