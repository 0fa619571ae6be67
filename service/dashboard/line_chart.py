"""Line charts, drawn on the server as SVG: axes with round ticks, one line for each series."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

WIDTH, HEIGHT = 480, 260
"""The drawing's size, in its own units."""
LEFT, RIGHT, TOP, BOTTOM = 56, 34, 12, 30
"""Margins around the lines, for the labels of the axes."""
_SPARK_WIDTH, _SPARK_HEIGHT = 120, 24
_TICKS = 5
_STEPS = (1, 2, 2.5, 5, 10)


@dataclass(frozen=True, slots=True)
class Line:
    """A series.

    Attributes:
        label: Name shown for it.
        colour: Number of its colour, from 0.
        points: Values of x and y.
    """

    label: str
    colour: int
    points: Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Tick:
    """A mark on an axis: its position in the drawing, and its label."""

    position: float
    label: str


@dataclass(frozen=True, slots=True)
class LineChart:
    """A chart as the template draws it.

    Attributes:
        title: Text above it.
        x_ticks: Marks of the horizontal axis.
        y_ticks: Marks of the vertical axis.
        paths: Label, number of the colour and SVG points of each line.
    """

    title: str
    x_ticks: list[Tick]
    y_ticks: list[Tick]
    paths: list[tuple[str, int, str]]

    @property
    def legend(self) -> list[tuple[str, int]]:
        """Each label once, with the number of its colour."""
        return list(dict.fromkeys((label, colour) for label, colour, _ in self.paths))


def draw_lines(title: str, lines: Sequence[Line], format_x: Callable[[float], str]) -> LineChart | None:
    """Lay out a chart; None if no line has a point.

    Args:
        title: Text above it.
        lines: The series.
        format_x: Formats the labels of the horizontal axis.
    """
    points = [point for line in lines for point in line.points]
    if not points:
        return None
    x_marks = _marks(0.0, max(x for x, _ in points))
    y_marks = _marks(min(y for _, y in points), max(y for _, y in points))
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM

    def place(x: float, y: float) -> tuple[float, float]:
        return (
            _interpolate(x, x_marks[0], x_marks[-1], LEFT, right),
            _interpolate(y, y_marks[0], y_marks[-1], bottom, TOP),
        )

    return LineChart(
        title,
        [Tick(place(mark, y_marks[0])[0], format_x(mark)) for mark in x_marks],
        [Tick(place(0, mark)[1], f"{mark:.6g}") for mark in y_marks],
        [
            (line.label, line.colour, " ".join("{:.1f},{:.1f}".format(*place(x, y)) for x, y in line.points))
            for line in lines
            if line.points
        ],
    )


def _marks(low: float, high: float) -> list[float]:
    """Return evenly spaced round numbers from at most `low` to at least `high`."""
    span = high - low or abs(high) or 1.0
    rough = span / _TICKS
    size = 10 ** math.floor(math.log10(rough))
    step = size * next(each for each in _STEPS if each * size >= rough)
    first, last = math.floor(low / step), math.ceil(high / step)
    return [number * step for number in range(first, max(last, first + 1) + 1)]


def _interpolate(value: float, low: float, high: float, first: float, last: float) -> float:
    return first + (value - low) / (high - low) * (last - first)


def draw_sparkline(values: Sequence[float]) -> str:
    """Return the points of a curve, as `points` of an SVG polyline in a drawing 120 wide and 24 high."""
    low, high = min(values, default=0.0), max(values, default=0.0)
    span = (high - low) or 1.0
    step = _SPARK_WIDTH / max(1, len(values) - 1)
    return " ".join(
        f"{place * step:.1f},{_SPARK_HEIGHT - 2 - (value - low) / span * (_SPARK_HEIGHT - 4):.1f}"
        for place, value in enumerate(values)
    )
