"""The best value of a metric and its arrival at a target, over all values that are stored: none is sampled."""

from collections.abc import Sequence

from sqlalchemy import Float, Subquery, cast, func, select
from sqlalchemy.orm import Session

from core.comparison.measurement import Arrival, Goal, running_seconds
from core.db.models.metrics import Metric


def best_value(session: Session, job_id: str, name: str, goal: Goal) -> float | None:
    """Return the best value of a metric that a job wrote; None if it never was a finite number."""
    value = _reports(session, job_id, name).c.value
    best: float | None = session.scalar(select((func.max if goal == "max" else func.min)(value)))
    return best


def find_arrival(
    session: Session, job_id: str, name: str, goal: Goal, target: float, runs: Sequence[tuple[float, float]]
) -> Arrival | None:
    """Find the first report at which the target was reached.

    Args:
        session: Reads.
        job_id: The job.
        name: Name of the metric.
        goal: Direction in which the metric improves.
        target: Value to be reached.
        runs: Start and end of each attempt's command, unix times in seconds; the last end may be now.
    """
    reports = _reports(session, job_id, name)
    reached = reports.c.value >= target if goal == "max" else reports.c.value <= target
    query = select(reports.c.step, reports.c.at).where(reached).order_by(reports.c.attempt, reports.c.offset)
    first = session.execute(query.limit(1)).first()
    return Arrival(running_seconds(first.at.timestamp(), runs), first.step) if first else None


def _reports(session: Session, job_id: str, name: str) -> Subquery:
    each = func.json_each_text if session.get_bind().dialect.name == "postgresql" else func.json_each
    pair = each(Metric.values).table_valued("key", "value")
    return (
        select(Metric.attempt, Metric.offset, Metric.step, Metric.at, cast(pair.c.value, Float).label("value"))
        .join(pair, pair.c.key == name)
        .where(Metric.job_id == job_id, Metric.source == "job")
        .subquery()
    )
