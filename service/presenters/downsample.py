import math
from collections.abc import Sequence

from core.jobs.tracking.metrics import Series
from service.schemas.outputs import PointView, SeriesView

Point = tuple[float | None, float, float | None]  # (step, unix time in seconds, value)


def downsample(points: Sequence[Point], max_points: int) -> list[Point]:
    """Return at most `max_points` (at least 3) of the points, in their order, with their peaks."""
    if len(points) <= max_points:
        return list(points)
    finite = (_finite_or_none(value) for *_, value in points)
    return [points[place] for place in thin([math.nan if one is None else one for one in finite], max_points)]


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
        places.extend(start + place for place in sorted(ends))
    return [*places[: most - 1], len(values) - 1]


def series_view(series: Series, max_points: int) -> SeriesView:
    """Convert a series to its public form, with at most `max_points` points."""
    finite = [value for value in (_finite_or_none(value) for *_, value in series.points) if value is not None]
    return SeriesView(
        name=series.name,
        source="system" if series.source == "system" else "job",
        points=[
            PointView(step=step, time=at, value=_finite_or_none(value))
            for step, at, value in downsample(series.points, max_points)
        ],
        last=_finite_or_none(series.points[-1][2]) if series.points else None,
        min=min(finite, default=None),
        max=max(finite, default=None),
    )


def _finite_or_none(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
