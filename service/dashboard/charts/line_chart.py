"""Charts drawn on the server as SVG: axes with round ticks, lines, and final points with their Pareto front."""

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

WIDTH, HEIGHT = 480, 260  # the drawing's size, in its own units
LEFT, RIGHT, TOP, BOTTOM = 56, 34, 12, 30  # margins around the lines, for the labels of the axes
_SPARK_WIDTH, _SPARK_HEIGHT = 120, 24
_TICKS = 5
_STEPS = (1, 2, 2.5, 5, 10)
_FLAT = 1e-12
"""Share of the largest value below which a span is flat: the marks of a smaller one would be the same numbers."""
_SMALLEST = 1e-300  # span below which a fifth of it may be zero


@dataclass(frozen=True, slots=True)
class Line:
    label: str
    colour: int  # number of its colour, from 0
    points: Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Dot:
    label: str
    colour: int  # number of its colour, from 0
    x: float  # its value on the horizontal axis; less is better
    y: float
    text: str
    front: str | None  # name of the Pareto front that it is on, or None


@dataclass(frozen=True, slots=True)
class Tick:
    """A mark on an axis: its position in the drawing, and its label."""

    position: float
    label: str


@dataclass(frozen=True, slots=True)
class LineChart:
    title: str
    x_ticks: list[Tick]
    y_ticks: list[Tick]
    paths: list[tuple[str, int, str]]
    dots: list[tuple[Dot, float, float]]
    fronts: dict[str, str]

    @property
    def legend(self) -> list[tuple[str, int]]:
        of_dots = [(dot.label, dot.colour) for dot, _, _ in self.dots]
        return list(dict.fromkeys([*((label, colour) for label, colour, _ in self.paths), *of_dots]))

    @property
    def front_texts(self) -> dict[str, str]:
        """The points of each front in words, from the left, by its name."""
        dots = sorted((dot for dot, _, _ in self.dots), key=lambda dot: (dot.x, dot.y))
        return {
            front: ", ".join(f"{dot.label} ({dot.text})" for dot in dots if dot.front == front) for front in self.fronts
        }


def draw_lines(
    title: str,
    lines: Sequence[Line],
    format_x: Callable[[float], str],
    *,
    dots: Sequence[Dot] = (),
    format_y: Callable[[float], str] = "{:.6g}".format,
    rising: bool = True,  # True if more is better on the vertical axis: the fronts of the final points rise
) -> LineChart | None:
    points = [*(point for line in lines for point in line.points), *((dot.x, dot.y) for dot in dots)]
    if not points:
        return None
    x_marks = round_marks(min(0.0, *(x for x, _ in points)), max(x for x, _ in points))
    y_marks = round_marks(min(y for _, y in points), max(y for _, y in points))
    place = partial(_place, x_marks, y_marks)
    placed = [(dot, *place(dot.x, dot.y)) for dot in dots]
    return LineChart(
        title,
        [Tick(place(mark, y_marks[0])[0], format_x(mark)) for mark in x_marks],
        [Tick(place(0, mark)[1], format_y(mark)) for mark in y_marks],
        [
            (line.label, line.colour, " ".join("{:.1f},{:.1f}".format(*place(x, y)) for x, y in line.points))
            for line in lines
            if line.points
        ],
        placed,
        _draw_fronts(placed, HEIGHT - BOTTOM if rising else TOP),
    )


def _draw_fronts(dots: Sequence[tuple[Dot, float, float]], worst: float) -> dict[str, str]:
    """Return the SVG path of each front: the best that is reached up to each place of the horizontal axis."""
    fronts: dict[str, list[tuple[float, float]]] = {}
    for dot, x, y in dots:
        if dot.front is not None:
            fronts.setdefault(dot.front, []).append((x, y))
    return {
        front: f"M{min(places)[0]:.1f},{worst}{''.join(f'H{x:.1f}V{y:.1f}' for x, y in sorted(places))}H{WIDTH - RIGHT}"
        for front, places in fronts.items()
    }


def round_marks(low: float, high: float) -> list[float]:
    """Return evenly spaced round numbers from at most `low` to at least `high`."""
    largest = max(abs(low), abs(high))
    half = high / 2 - low / 2  # the whole span may be infinite
    if half <= largest * _FLAT:
        half = largest / 2
    rough = (half if half > _SMALLEST else 0.5) / _TICKS * 2
    size = 10 ** math.floor(math.log10(rough))
    step = size * next(each for each in _STEPS if each * size >= rough)
    first, last = math.floor(low / step), math.ceil(high / step)
    most = sys.float_info.max
    return [max(-most, min(most, number * step)) for number in range(first, max(last, first + 1) + 1)]


def _place(x_marks: Sequence[float], y_marks: Sequence[float], x: float, y: float) -> tuple[float, float]:
    return (
        _interpolate(x, x_marks[0], x_marks[-1], LEFT, WIDTH - RIGHT),
        _interpolate(y, y_marks[0], y_marks[-1], HEIGHT - BOTTOM, TOP),
    )


def _interpolate(value: float, low: float, high: float, first: float, last: float) -> float:
    return first + (value / 2 - low / 2) / (high / 2 - low / 2) * (last - first)  # high - low may be infinite


def draw_sparkline(values: Sequence[float]) -> str:
    """Return the points of a curve, as `points` of an SVG polyline in a drawing 120 wide and 24 high."""
    low, high = min(values, default=0.0), max(values, default=0.0)
    half = (high / 2 - low / 2) or 1.0  # the whole span may be infinite
    step = _SPARK_WIDTH / max(1, len(values) - 1)
    return " ".join(
        f"{place * step:.1f},{_SPARK_HEIGHT - 2 - (value / 2 - low / 2) / half * (_SPARK_HEIGHT - 4):.1f}"
        for place, value in enumerate(values)
    )
