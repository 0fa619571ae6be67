from datetime import datetime

from sqlalchemy import JSON, BigInteger, ForeignKey, Index, String
from sqlalchemy.orm import Mapped, mapped_column

from core.db.database import Base, UtcDateTime


class LastMetric(Base):
    """The last finite value of a metric that a job wrote, by which lists of jobs are filtered and sorted."""

    __tablename__ = "last_metrics"

    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"), primary_key=True)
    name: Mapped[str] = mapped_column(String(200), primary_key=True)
    value: Mapped[float]

    __table_args__ = (Index("ix_last_metrics_name_value", "name", "value"),)


class Metric(Base):
    """One line of a job's metrics file or log, one event of its event files, or one sample of its machine."""

    __tablename__ = "metrics"

    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"), primary_key=True)
    attempt: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    source: Mapped[str] = mapped_column(String(16), primary_key=True)  # job or system
    offset: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    """Byte offset in the metrics file, 2**40 more than that in the log, or 2**40 more for each event file (job); ms
    since the attempt began (system). A repeat is a no-op."""
    step: Mapped[float | None]
    at: Mapped[datetime] = mapped_column(UtcDateTime)
    values: Mapped[dict[str, float | None]] = mapped_column(JSON)
