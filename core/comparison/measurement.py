"""Measurements of one training, from the metrics that its program wrote and the times of its attempts."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from math import ceil
from operator import itemgetter
from statistics import median, quantiles
from typing import Literal

from sqlalchemy import Float, Subquery, cast, func, select
from sqlalchemy.orm import Session

from core.db.models.metrics import Metric

Goal = Literal["max", "min"]
"""Direction in which a metric improves."""
Point = tuple[float | None, float, float | None]
"""Step, unix time in seconds, and value of a metric; a value that was not finite is None."""

_MIN_INTERVALS = 3
_FOR_QUARTILES = 2
_FINAL_SHARE = 0.2


@dataclass(frozen=True, slots=True)
class Pace:
    """Steps a second in the steady state."""

    median: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Arrival:
    """The first report at which a metric had reached its target."""

    seconds: float
    step: float | None


def measure_pace(points: Iterable[Point]) -> Pace | None:
    """Measure the pace between consecutive reports of one metric.

    The first interval is left out if three others remain: it holds compilation and the filling of caches. An interval
    in which the step does not rise, such as a restart from a checkpoint, is left out, too. Of reports with the same
    time, such as lines that gave none and were read together, the last counts.

    Args:
        points: Reports, in the order in which they were written; those without a step are passed over.

    Returns:
        None if fewer than two reports have rising steps and times.
    """
    same_time = groupby(((step, at) for step, at, _ in points if step is not None), key=itemgetter(1))
    reports = [list(group)[-1] for _, group in same_time]
    rates = [
        (step - before) / (at - earlier)
        for (before, earlier), (step, at) in pairwise(reports)
        if step > before and at > earlier
    ]
    if len(rates) > _MIN_INTERVALS:
        rates = rates[1:]
    if not rates:
        return None
    low, _, high = quantiles(rates, n=4, method="inclusive") if len(rates) >= _FOR_QUARTILES else (rates[0],) * 3
    return Pace(median(rates), low, high)


def running_seconds(at: float, runs: Sequence[tuple[float, float]]) -> float:
    """Return the running time until a moment, without the pauses between attempts."""
    return sum(max(0.0, min(end, at) - start) for start, end in runs)


def learning_curve(points: Iterable[Point], runs: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the finite values of a metric by running time in seconds."""
    return [(running_seconds(at, runs), value) for _, at, value in points if value is not None]


def best_value(session: Session, job_id: str, name: str, goal: Goal) -> float | None:
    """Return the best value of a metric that a job wrote; None if it never was a finite number."""
    value = _reports(session, job_id, name).c.value
    best: float | None = session.scalar(select((func.max if goal == "max" else func.min)(value)))
    return best


def final_value(session: Session, job_id: str, name: str) -> float | None:
    """Return a metric at the end of a job: the median of the last fifth of its reports, at least of the last one.

    Unlike the best of all, it is not higher by chance in a run that evaluates more often.

    Returns:
        None if none of these reports has a finite value.
    """
    reports = _reports(session, job_id, name)
    count = session.scalar(select(func.count()).select_from(reports)) or 0
    last = select(reports.c.value).order_by(reports.c.attempt.desc(), reports.c.offset.desc())
    values = session.scalars(last.limit(ceil(count * _FINAL_SHARE)))
    return median(finite) if (finite := [value for value in values if value is not None]) else None


def find_arrival(
    session: Session, job_id: str, name: str, goal: Goal, target: float, runs: Sequence[tuple[float, float]]
) -> Arrival | None:
    """Find the first report at which the target was reached.

    Args:
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
