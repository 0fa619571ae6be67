"""Line charts as SVG, without a library: axes with round ticks, one line for each series, light and dark."""

from __future__ import annotations

import math
from html import escape

TYPE_CHECKING = False  # the name type checkers know; importing typing for it would slow every start
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_WIDTH, _HEIGHT = 640, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 20, 34, 40
_LEGEND_LINE = 20
_TICKS = 5
_STEPS = (1, 2, 2.5, 5, 10)
_COLOURS = 8
_STYLE = """
text { font: 12px system-ui, sans-serif; fill: #1f2328 } .title { font-weight: 600 } .grid { stroke: #d0d7de }
polyline { fill: none; stroke-width: 2 }
.c0 { stroke: #0969da } .c1 { stroke: #bc4c00 } .c2 { stroke: #1a7f37 } .c3 { stroke: #8250df }
.c4 { stroke: #cf222e } .c5 { stroke: #9a6700 } .c6 { stroke: #bf3989 } .c7 { stroke: #57606a }
@media (prefers-color-scheme: dark) { text { fill: #e6edf3 } .grid { stroke: #3d444d }
.c0 { stroke: #4493f8 } .c1 { stroke: #f0883e } .c2 { stroke: #3fb950 } .c3 { stroke: #ab7df8 }
.c4 { stroke: #f85149 } .c5 { stroke: #d29922 } .c6 { stroke: #db61a2 } .c7 { stroke: #9198a1 } }
"""


def draw(title: str, lines: Mapping[str, Sequence[tuple[float, float]]]) -> str | None:
    """Return a chart of values by step as an SVG document; None if no line has two points."""
    shown = {label: points for label, points in lines.items() if len(points) > 1}
    if not shown:
        return None
    points = [point for line in shown.values() for point in line]
    x_ticks = _ticks(min(x for x, _ in points), max(x for x, _ in points))
    y_ticks = _ticks(min(y for _, y in points), max(y for _, y in points))
    height = _HEIGHT + _LEGEND_LINE * len(shown)
    label, title = escape(title, quote=True), escape(title)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{label}">',
        f"<style>{_STYLE}</style>",
        f'<text class="title" x="{_LEFT}" y="20">{title}</text>',
    ]
    for tick in y_ticks:
        y = _scale(tick, y_ticks, _HEIGHT - _BOTTOM, _TOP)
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{tick:.6g}</text>')
    for tick in x_ticks:
        x = _scale(tick, x_ticks, _LEFT, _WIDTH - _RIGHT)
        parts.append(f'<text x="{x:.1f}" y="{_HEIGHT - _BOTTOM + 18}" text-anchor="middle">{tick:.6g}</text>')
    parts.append(f'<text x="{_WIDTH - _RIGHT}" y="{_HEIGHT - 4}" text-anchor="end">step</text>')
    for number, (label, line) in enumerate(shown.items()):
        placed = " ".join(
            f"{_scale(x, x_ticks, _LEFT, _WIDTH - _RIGHT):.1f},{_scale(y, y_ticks, _HEIGHT - _BOTTOM, _TOP):.1f}"
            for x, y in line
        )
        colour, y = f"c{number % _COLOURS}", _HEIGHT + _LEGEND_LINE * number + 10
        parts.append(f'<polyline class="{colour}" points="{placed}"/>')
        parts.append(f'<polyline class="{colour}" points="{_LEFT},{y - 4} {_LEFT + 20},{y - 4}"/>')
        parts.append(f'<text x="{_LEFT + 28}" y="{y}">{escape(label)}</text>')
    return "\n".join([*parts, "</svg>", ""])


def _ticks(low: float, high: float) -> list[float]:
    """Return evenly spaced round numbers from at most `low` to at least `high`."""
    rough = (high - low or abs(high) or 1.0) / _TICKS
    size = 10 ** math.floor(math.log10(rough))
    step = size * next(each for each in _STEPS if each * size >= rough)
    first, last = math.floor(low / step), math.ceil(high / step)
    return [number * step for number in range(first, max(last, first + 1) + 1)]


def _scale(value: float, ticks: Sequence[float], first: float, last: float) -> float:
    return first + (value - ticks[0]) / (ticks[-1] - ticks[0]) * (last - first)
