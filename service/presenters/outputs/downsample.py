import math
from collections.abc import Sequence

from core.jobs.tracking.metrics import Series
from service.schemas.outputs import PointView, SeriesView

Point = tuple[float | None, float, float]  # (step, unix time in seconds, value)


def downsample(points: Sequence[Point], max_points: int) -> list[Point]:
    """Return at most `max_points` (at least 3) of the points, in their order, with their peaks."""
    if len(points) <= max_points:
        return list(points)
    return [points[index] for index in thin([finite_or_nan(value) for *_, value in points], max_points)]


def thin(values: Sequence[float], most: int) -> Sequence[int]:
    """Return the places of at most `most` (at least 3) of the values, which may be NaN, but not infinite.

    Keeps the first and the last value, and the lowest and the highest of each section, so that no spike is lost.
    """
    if len(values) <= most:
        return range(len(values))
    sections, inner = max(1, (most - 2) // 2), len(values) - 2
    places = [0]
    for number in range(sections):
        start = 1 + inner * number // sections
        section = values[start : 1 + inner * (number + 1) // sections]
        finite = [value for value in section if not math.isnan(value)]
        last = len(section) - 1 - section[::-1].index(max(finite)) if finite else 0
        ends = {section.index(min(finite)), last} if finite else {0}
        places.extend(start + offset for offset in sorted(ends))
    return [*places[: most - 1], len(values) - 1]


def series_view(series: Series, max_points: int) -> SeriesView:
    """Convert a series to its public form, with at most `max_points` points."""
    finite = [value for *_, value in series.points if math.isfinite(value)]
    return SeriesView(
        name=series.name,
        source="system" if series.source == "system" else "job",
        points=[
            PointView(step=step, time=at, value=value) for step, at, value in downsample(series.points, max_points)
        ],
        last=series.points[-1][2] if series.points else None,
        min=min(finite, default=None),
        max=max(finite, default=None),
    )


def finite_or_nan(value: float) -> float:
    return value if math.isfinite(value) else math.nan
