"""Runs as lines across parallel axes, drawn as SVG: an axis for each parameter that differs, the last one a metric."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from service.dashboard.charts.line_chart import Tick, round_marks

WIDTH, HEIGHT = 960, 260  # the drawing's size, in its own units
_LEFT, _RIGHT, _TOP, _BOTTOM = 60, 60, 34, 12
_MOST_AXES = 8
_MOST_TEXTS = 12
_FEW_VALUES = 6  # are marked themselves, in place of round numbers
_TICK_CHARACTERS = 12
_LOG_FROM = 50.0
"""Least factor between the largest and the smallest value of a parameter whose axis is logarithmic."""

Value = float | str | None


@dataclass(frozen=True, slots=True)
class Axis:
    title: str
    x: float
    ticks: Sequence[Tick]


@dataclass(frozen=True, slots=True)
class ParallelChart:
    axes: Sequence[Axis]
    lines: Sequence[tuple[int, str, str]]  # number of the run, its colour, and the points of its line


def draw_parallel(columns: Sequence[tuple[str, Sequence[Value]]], goal: str) -> ParallelChart | None:
    """Draw the runs whose metric, the last column, is known; the better it is, the greener the line."""
    shown = [*columns[:-1][: _MOST_AXES - 1], columns[-1]]
    results = columns[-1][1]
    runs = [run for run, value in enumerate(results) if isinstance(value, int | float)]
    if len(runs) < 2 or len(shown) < 2:  # noqa: PLR2004 - one run or one axis compares nothing
        return None
    axes, heights = [], []
    for number, (title, values) in enumerate(shown):
        place, ticks = _scale([values[run] for run in runs])
        axes.append(Axis(title, _LEFT + number * (WIDTH - _LEFT - _RIGHT) / (len(shown) - 1), ticks))
        heights.append(place)
    ranked = sorted(runs, key=lambda run: results[run], reverse=goal == "min")  # type: ignore[arg-type, return-value]  # numbers
    colours = {run: _colour(rank / (len(runs) - 1)) for rank, run in enumerate(ranked)}
    lines = []
    for run in ranked:
        values = [column[run] for _, column in shown]
        known = [
            (axis.x, place(one)) for axis, place, one in zip(axes, heights, values, strict=True) if one is not None
        ]
        lines.append((run, colours[run], " ".join(f"{x:.1f},{y:.1f}" for x, y in known)))
    return ParallelChart(axes, lines)


def _scale(values: Sequence[Value]) -> tuple[Callable[[Value], float], list[Tick]]:
    """Return where a value is on its axis, and the marks of the axis."""
    known = [value for value in values if value is not None]
    numbers = [value for value in known if isinstance(value, int | float)]
    if len(numbers) < len(known) or not known:
        texts = sorted({str(value) for value in known})
        every = max(1, -(-len(texts) // _MOST_TEXTS))

        def at(value: Value) -> float:
            return _height((texts.index(str(value)) + 0.5) / len(texts))

        return at, [Tick(at(text), _short(text)) for text in texts[::every]]
    low, high = min(numbers), max(numbers)
    if low > 0 and high / low >= _LOG_FROM:
        powers = [10.0**power for power in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)]
        bottom, top = math.log10(powers[0]), math.log10(powers[-1])
        return lambda value: _height((math.log10(_number(value)) - bottom) / (top - bottom)), [
            Tick(_height((math.log10(power) - bottom) / (top - bottom)), f"{power:g}") for power in powers
        ]
    marks = round_marks(low, high)

    def linear(value: Value) -> float:
        return _height((_number(value) / 2 - marks[0] / 2) / (marks[-1] / 2 - marks[0] / 2))

    few = sorted(set(numbers))
    return linear, [Tick(linear(mark), f"{mark:.4g}") for mark in (few if len(few) <= _FEW_VALUES else marks)]


def _number(value: Value) -> float:
    return value if isinstance(value, int | float) else 0.0


def _height(share: float) -> float:
    return HEIGHT - _BOTTOM - share * (HEIGHT - _TOP - _BOTTOM)


def _short(text: str) -> str:
    return text if len(text) <= _TICK_CHARACTERS else f"{text[: _TICK_CHARACTERS - 1]}…"


def _colour(share: float) -> str:
    return f"hsl({265 - 115 * share:.0f}, 55%, 50%)"  # from violet to green
