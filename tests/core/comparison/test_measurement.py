"""Pace, best value and arrival at a target, from the points of a metric."""

import pytest

from core.comparison.measurement import Arrival, Pace, best_value, find_arrival, measure_pace

START = 1_000.0


def reports(*intervals, step=10):
    """Points of a metric after intervals of so many seconds, each `step` steps further."""
    at, points = START, [(0, START, 0.0)]
    for number, seconds in enumerate(intervals, 1):
        at += seconds
        points.append((number * step, at, float(number)))
    return points


def test_the_first_interval_is_warm_up():
    assert measure_pace(reports(60, 1, 1, 1)) == Pace(10, 10, 10)


def test_few_intervals_are_all_kept():
    assert measure_pace(reports(2, 1)) == Pace(7.5, 6.25, 8.75)
    assert measure_pace(reports(4)) == Pace(2.5, 2.5, 2.5)


def test_the_spread_is_that_between_quartiles():
    pace = measure_pace(reports(9, 1, 2, 1, 2, 1))
    assert (pace.median, pace.low, pace.high) == (10, 5, 10)


def test_a_restart_from_a_checkpoint_counts_for_no_interval():
    points = reports(1, 1, 1, 1)
    again = [(20, START + 100, 0.0), (30, START + 101, 0.0)]
    assert measure_pace(points + again) == Pace(10, 10, 10)


def test_reports_of_the_same_time_are_one():
    """A program that gives no time is read several lines at once."""
    points = [(step, START + step // 10, 0.0) for step in range(1, 50)]
    assert measure_pace(points) == Pace(10, 10, 10)


@pytest.mark.parametrize(
    "points", [[], [(None, START, 1.0), (None, START + 1, 2.0)], [(1, START, 1.0)], [(1, START, 1.0), (2, START, 1.0)]]
)
def test_without_rising_steps_and_times_there_is_no_pace(points):
    assert measure_pace(points) is None


def test_the_best_value_is_the_largest_or_the_smallest_number():
    points = [(1, START, 0.5), (2, START, None), (3, START, 0.9), (4, START, 0.7)]
    assert (best_value(points, "max"), best_value(points, "min")) == (0.9, 0.5)
    assert best_value([(1, START, None)], "max") is None


def test_time_to_a_target_is_running_time():
    runs = [(START, START + 2), (START + 50, START + 60)]
    points = reports(1, 1, 49, 1)
    assert find_arrival(points, "max", 1.0, runs) == Arrival(1, 10)
    assert find_arrival(points, "max", 3.0, runs) == Arrival(3, 30), "the pause between attempts does not count"
    assert find_arrival(points, "max", 5.0, runs) is None
    assert find_arrival(points, "min", 0.0, runs) == Arrival(0, 0)
