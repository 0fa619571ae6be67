"""Marks of a chart's axes, its final points, and the steps of their Pareto fronts."""

import math
import sys

import pytest

from service.dashboard.charts.line_chart import BOTTOM, HEIGHT, TOP, Line, draw_lines, draw_sparkline


@pytest.mark.parametrize(
    "values",
    [
        (1.0, math.nextafter(1.0, 2.0)),
        (-1e9, math.nextafter(-1e9, 0.0)),
        (-1e308, 1e308),
        (0.0, sys.float_info.max),
        (-sys.float_info.max, sys.float_info.max),
        (0.0, 5e-324),
        (0.0, 0.0),
    ],
)
def test_any_values_are_drawn_inside_the_axes(values):
    chart = draw_lines("loss", [Line("loss", 0, list(enumerate(values)))], "{:g}".format)
    heights = [float(point.split(",")[1]) for point in chart.paths[0][2].split()]
    assert all(TOP <= height <= HEIGHT - BOTTOM for height in heights)
    assert len({tick.position for tick in chart.y_ticks}) == len(chart.y_ticks) > 1
    assert "nan" not in draw_sparkline(values)
