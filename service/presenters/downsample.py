"""Downsampling of a series for a chart, keeping its peaks."""

import math
from collections.abc import Iterator, Sequence

from core.jobs.metrics import Series
from service.schemas.jobs import PointView, SeriesView

Point = tuple[float | None, float, float | None]
"""(step, unix time in seconds, value)"""


def thin(points: Sequence[Point], most: int) -> list[Point]:
    """Return at most `most` (at least 3) of the points, in their order.

    Keeps the first and the last point, and the lowest and the highest of each section, so that no spike is lost.
    """
    if len(points) <= most:
        return list(points)
    inner = points[1:-1]
    stretches = max(1, (most - 2) // 2)
    kept = [points[0]]
    for number in range(stretches):
        stretch = inner[len(inner) * number // stretches : len(inner) * (number + 1) // stretches]
        kept.extend(_extremes(stretch))
    kept.append(points[-1])
    return kept[: most - 1] + kept[-1:] if len(kept) > most else kept


def _extremes(stretch: Sequence[Point]) -> Iterator[Point]:
    finite = [(point[2], place) for place, point in enumerate(stretch) if _finite(point[2]) is not None]
    if not finite:
        yield from stretch[:1]
        return
    for place in sorted({min(finite)[1], max(finite)[1]}):
        yield stretch[place]


def series_view(series: Series, most: int) -> SeriesView:
    """Convert a series to its public form, with at most `most` points."""
    finite = [value for value in (_finite(value) for *_, value in series.points) if value is not None]
    return SeriesView(
        name=series.name,
        source="system" if series.source == "system" else "job",
        points=[PointView(step=step, time=at, value=_finite(value)) for step, at, value in thin(series.points, most)],
        last=_finite(series.points[-1][2]) if series.points else None,
        min=min(finite, default=None),
        max=max(finite, default=None),
    )


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
