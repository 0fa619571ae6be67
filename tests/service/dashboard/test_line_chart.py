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


def test_a_falling_front_steps_down():
    chart = draw(dot(2, 6), dot(5, 1), rising=False)
    assert corners(chart.fronts["Pareto front"]) == [(2, 10), (2, 10), (2, 6), (5, 6), (5, 1), (10, 1)]


def test_real_and_simulated_machines_have_a_line_each():
    chart = draw(dot(2, 4), dot(1, 9, front="simulated", label="TPU"))
    assert {name: corners(path)[-1] for name, path in chart.fronts.items()} == {
        "Pareto front": (10, 4),
        "simulated": (10, 9),
    }
    assert chart.front_texts == {"Pareto front": "V100 (4 for 2)", "simulated": "TPU (9 for 1)"}
    assert chart.legend == [("V100", 0), ("TPU", 0)]


def test_words_name_the_points_from_the_left():
    assert draw(dot(5, 8), dot(2, 4)).front_texts == {"Pareto front": "V100 (4 for 2), V100 (8 for 5)"}


def test_a_chart_may_have_only_points():
    chart = draw_lines("y by x", [], "{:g}".format, dots=[dot(3, 2)])
    assert (len(chart.dots), chart.paths) == (1, [])
    assert draw_lines("y by x", [], "{:g}".format) is None


def test_steps_may_be_negative():
    chart = draw_lines("loss", [Line("loss", 0, [(-10, 1), (-5, 2)])], "{:g}".format)
    assert [tick.label for tick in chart.x_ticks] == ["-10", "-9", "-8", "-7", "-6", "-5"]
    [(_, _, path)] = chart.paths
    assert path == f"{LEFT:.1f},{HEIGHT - BOTTOM:.1f} {WIDTH - RIGHT:.1f},{TOP:.1f}"


def test_points_on_both_sides_of_zero_are_inside_the_axes():
    chart = draw_lines("loss", [Line("loss", 0, [(-5, 1), (5, 2)])], "{:g}".format)
    places = [float(point.split(",")[0]) for point in chart.paths[0][2].split()]
    assert LEFT <= places[0] < places[1] <= WIDTH - RIGHT


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
