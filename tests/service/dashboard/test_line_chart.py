"""Marks of a chart's axes, its final points, and the steps of their Pareto fronts."""

import math
import re
import sys

import pytest

from service.dashboard.line_chart import (
    BOTTOM,
    HEIGHT,
    LEFT,
    RIGHT,
    TOP,
    WIDTH,
    Dot,
    Line,
    draw_lines,
    draw_sparkline,
)


def draw(*dots, rising=True):
    line = Line("V100", 0, [(0, 0), (10, 10)])
    chart = draw_lines("y by x", [line], "{:g}".format, dots=dots, rising=rising)
    assert (chart.x_ticks[-1].label, chart.y_ticks[-1].label) == ("10", "10"), "places are easy to compute"
    return chart


def dot(x, y, front="Pareto front", label="V100"):
    return Dot(label, 0, x, y, f"{y} for {x}", front)


def corners(path):
    """The corners of a path of straight lines, in the units of the axes, 0 to 10."""
    x, y, corners = 0.0, 0.0, []
    for command, values in re.findall(r"([MHV])([\d.,]+)", path):
        numbers = [float(value) for value in values.split(",")]
        x = numbers[0] if command in "MH" else x
        y = numbers[-1] if command in "MV" else y
        across = (x - LEFT) / (WIDTH - RIGHT - LEFT) * 10
        up = (HEIGHT - BOTTOM - y) / (HEIGHT - BOTTOM - TOP) * 10
        corners.append((round(across, 1), round(up, 1)))
    return corners


def test_a_rising_front_steps_up_at_each_of_its_points():
    chart = draw(dot(5, 8), dot(2, 4), dot(7, 3, front=None))
    assert corners(chart.fronts["Pareto front"]) == [(2, 0), (2, 0), (2, 4), (5, 4), (5, 8), (10, 8)]


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
