from datetime import datetime
from typing import Any

from sqlalchemy import JSON, Index, String, Text, text
from sqlalchemy.orm import Mapped, mapped_column

from core.db.database import Base, UtcDateTime
from core.db.models.templates import Template
from core.jobs.spec.params import Value

_TO_NOTIFY = text("to_notify IS NOT NULL")


class Sweep(Template, Base):
    """A search for the parameters with the best value of a metric. Its jobs are members of an array with its id."""

    __tablename__ = "sweeps"

    plan: Mapped[dict[str, Any]] = mapped_column(JSON)  # a `core.jobs.templates.sweeps.plan.Plan`
    state: Mapped[str] = mapped_column(String(16))  # running, paused, stopped or finished
    reason: Mapped[str | None] = mapped_column(Text)  # why it is paused, has ended, or begins no trial now
    turn: Mapped[int] = mapped_column(default=0)
    """Number of changes. Whoever changes it or its trials increases it, from the number that was read."""
    failures: Mapped[int] = mapped_column(default=0)  # trials that failed since one did not
    to_notify: Mapped[bool | None]  # true if it has ended or paused, and receivers have not been considered yet

    __table_args__ = (
        Index("ix_sweeps_state", "state"),
        Index("ix_sweeps_to_notify", "seq", sqlite_where=_TO_NOTIFY, postgresql_where=_TO_NOTIFY),
        Index("uq_sweeps_idempotency", "submitted_by", "idempotency_key", unique=True),
    )


class SweepTrial(Base):
    """One combination of parameters, and what became of it."""

    __tablename__ = "sweep_trials"

    sweep_id: Mapped[str] = mapped_column(String(16), primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)  # from 0
    job_id: Mapped[str | None] = mapped_column(String(16))  # None: a program of one's own evaluates it
    params: Mapped[dict[str, Value]] = mapped_column(JSON)
    state: Mapped[str] = mapped_column(String(16))  # waiting, running, complete, pruned, failed or cancelled
    value: Mapped[float | None]  # the last value of the metric; None: none, or no finite one
    step: Mapped[float | None]  # its step
    best: Mapped[float | None]  # the best value of the metric
    history: Mapped[list[float | None]] = mapped_column(JSON)
    """The first values of the metric, by which it is judged whether the trial goes on."""
    judged: Mapped[int] = mapped_column(default=0)  # place in them, from 1, of the last value that was judged
    key: Mapped[str | None] = mapped_column(String(64))
    """Chosen by the program that evaluates it, if that is no job: nobody else's reports are taken."""
    reported_at: Mapped[datetime | None] = mapped_column(UtcDateTime)  # when that program last reported
    read_attempt: Mapped[int] = mapped_column(default=0)  # attempt of the last values read
    read_offsets: Mapped[list[int]] = mapped_column(JSON)
    """Offset of the last value read of each of its files, ascending; of a program's reports, their number."""
    reason: Mapped[str | None] = mapped_column(Text)  # why it was stopped by the sweep, has failed, or has no value
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    ended_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
