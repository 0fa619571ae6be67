"""Measurements of one training, from the metrics that its program wrote and the times of its attempts."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from operator import itemgetter
from statistics import median, quantiles
from typing import Literal

Goal = Literal["max", "min"]
"""Direction in which a metric improves."""
Point = tuple[float | None, float, float | None]
"""Step, unix time in seconds, and value of a metric; a value that was not finite is None."""

_MIN_INTERVALS = 3
_FOR_QUARTILES = 2


@dataclass(frozen=True, slots=True)
class Pace:
    """Steps a second in the steady state.

    Attributes:
        median: Median over the intervals between reports.
        low: First quartile.
        high: Third quartile.
    """

    median: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Arrival:
    """The first report at which a metric had reached its target.

    Attributes:
        seconds: Running time until then.
        step: Step of the report, if it had one.
    """

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
