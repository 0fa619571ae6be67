"""The series of charts that the browser draws, in words for one without scripts, and sparklines."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

_SPARK_WIDTH, _SPARK_HEIGHT = 120, 24


@dataclass(frozen=True, slots=True)
class Series:
    name: str
    points: Sequence[tuple[float, float]]  # in order of x
    text: str  # what it shows, in words
    colour: int | None = None  # number of its colour, from 0; None: that of text
    kind: Literal["line", "marks", "steps", "interval"] = "line"
    filled: bool = True  # False: marks are hollow, steps are dotted
    label: str = ""  # beside its mark

    @property
    def columns(self) -> dict[str, Any]:
        """The series as the browser draws it."""
        xs, ys = ([_round(value) for value in column] for column in zip(*self.points, strict=True))
        return {
            "name": self.name,
            "text": self.text,
            "colour": self.colour,
            "kind": self.kind,
            "filled": self.filled,
            "label": self.label,
            "x": xs,
            "y": ys,
            "min": min(ys),
            "max": max(ys),
            "last": ys[-1],
        }


@dataclass(frozen=True, slots=True)
class Chart:
    title: str
    axis: Literal["relative", "cost", "number"]  # its unit: seconds, dollars, or none
    series: list[Series]
    unit: Literal["", "cost"] = ""  # of its values

    @property
    def drawn(self) -> dict[str, Any]:
        series = [line.columns for line in self.series]
        return {"title": self.title, "axis": self.axis, "unit": self.unit, "series": series}


def _round(value: float) -> float:
    return float(f"{value:.7g}")


def draw_sparkline(values: Sequence[float]) -> str:
    """Return the points of a curve, as `points` of an SVG polyline in a drawing 120 wide and 24 high."""
    low, high = min(values, default=0.0), max(values, default=0.0)
    half = (high / 2 - low / 2) or 1.0  # the whole span may be infinite
    step = _SPARK_WIDTH / max(1, len(values) - 1)
    return " ".join(
        f"{index * step:.1f},{_SPARK_HEIGHT - 2 - (value / 2 - low / 2) / half * (_SPARK_HEIGHT - 4):.1f}"
        for index, value in enumerate(values)
    )
