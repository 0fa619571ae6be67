import math
from datetime import datetime
from typing import Any

from sqlalchemy import JSON, BigInteger, Dialect, ForeignKey, Index, String, TypeDecorator
from sqlalchemy.orm import Mapped, mapped_column

from core.db.database import Base, UtcDateTime


class NumbersByName(TypeDecorator[dict[str, float]]):
    """A JSON object of numbers; NaN and infinities, which JSON lacks, are the strings NaN, Infinity and -Infinity."""

    impl = JSON
    cache_ok = True

    def process_bind_param(self, value: dict[str, float] | None, dialect: Dialect) -> dict[str, float | str] | None:
        del dialect
        if value is None or all(map(math.isfinite, value.values())):
            return value  # type: ignore[return-value]  # a dictionary is invariant
        return {name: to_json(number) for name, number in value.items()}

    def process_result_value(self, value: dict[str, float | str] | None, dialect: Dialect) -> dict[str, float] | None:
        del dialect
        return None if value is None else with_numbers(value)


_WORDS = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}
NOT_FINITE = tuple(_WORDS.values())


def to_json(number: float) -> float | str:
    """Return a number as JSON has it."""
    return number if math.isfinite(number) else _WORDS[str(number)]


def with_numbers(stored: dict[str, Any]) -> dict[str, float]:
    """Return the numbers of a stored object."""
    if any(isinstance(value, str) for value in stored.values()):
        return {name: float(value) for name, value in stored.items()}
    return stored


class LastMetric(Base):
    """The last value of a metric that a job wrote, by which lists of jobs are filtered and sorted."""

    __tablename__ = "last_metrics"

    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"), primary_key=True)
    name: Mapped[str] = mapped_column(String(200), primary_key=True)
    value: Mapped[float | None]  # None: NaN

    __table_args__ = (Index("ix_last_metrics_name_value", "name", "value"),)


class Metric(Base):
    """One line of a job's metrics file or log, one event of its event files, or one sample of its machine."""

    __tablename__ = "metrics"

    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"), primary_key=True)
    attempt: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    source: Mapped[str] = mapped_column(String(16), primary_key=True)  # job or system
    offset: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    """Byte offset in its source, plus 2**40 for each source before it (job); ms since the attempt began (system). A
    repeat is a no-op."""
    step: Mapped[float | None]
    at: Mapped[datetime] = mapped_column(UtcDateTime)
    values: Mapped[dict[str, float]] = mapped_column(NumbersByName)
