import math
from collections.abc import Iterator, Sequence

from core.jobs.tracking.metrics import Series
from service.schemas.outputs.metrics import PointView, SeriesView

Point = tuple[float | None, float, float | None]  # (step, unix time in seconds, value)


def downsample(points: Sequence[Point], max_points: int) -> list[Point]:
    """Return at most `max_points` (at least 3) of the points, in their order.

    Keeps the first and the last point, and the lowest and the highest of each section, so that no spike is lost.
    """
    if len(points) <= max_points:
        return list(points)
    inner = points[1:-1]
    sections = max(1, (max_points - 2) // 2)
    kept = [points[0]]
    for number in range(sections):
        section = inner[len(inner) * number // sections : len(inner) * (number + 1) // sections]
        kept.extend(_extremes(section))
    kept.append(points[-1])
    return kept[: max_points - 1] + kept[-1:] if len(kept) > max_points else kept


def _extremes(section: Sequence[Point]) -> Iterator[Point]:
    finite = [(point[2], place) for place, point in enumerate(section) if _finite_or_none(point[2]) is not None]
    if not finite:
        yield from section[:1]
        return
    for place in sorted({min(finite)[1], max(finite)[1]}):
        yield section[place]


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
