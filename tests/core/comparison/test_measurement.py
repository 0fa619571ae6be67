"""The pace, from the points of a metric."""

import pytest

from core.comparison.measurement import Spread, measure_pace

START = 1_000.0


def reports(*intervals, step=10):
    """Points of a metric after intervals of so many seconds, each `step` steps further."""
    at, points = START, [(0, START, 0.0)]
    for number, seconds in enumerate(intervals, 1):
        at += seconds
        points.append((number * step, at, float(number)))
    return points


def test_the_first_interval_is_warm_up():
    assert measure_pace(reports(60, 1, 1, 1)) == Spread(10, 10, 10)


def test_few_intervals_are_all_kept():
    assert measure_pace(reports(2, 1)) == Spread(7.5, 6.25, 8.75)
    assert measure_pace(reports(4)) == Spread(2.5, 2.5, 2.5)


def test_the_spread_is_that_between_quartiles():
    pace = measure_pace(reports(9, 1, 2, 1, 2, 1))
    assert (pace.median, pace.low, pace.high) == (10, 5, 10)


def test_a_restart_from_a_checkpoint_counts_for_no_interval():
    points = reports(1, 1, 1, 1)
    again = [(20, START + 100, 0.0), (30, START + 101, 0.0)]
    assert measure_pace(points + again) == Spread(10, 10, 10)


def test_reports_of_the_same_time_are_one():
    """A program that gives no time is read several lines at once."""
    points = [(step, START + step // 10, 0.0) for step in range(1, 50)]
    assert measure_pace(points) == Spread(10, 10, 10)


@pytest.mark.parametrize(
    "points", [[], [(None, START, 1.0), (None, START + 1, 2.0)], [(1, START, 1.0)], [(1, START, 1.0), (2, START, 1.0)]]
)
def test_without_rising_steps_and_times_there_is_no_pace(points):
    assert measure_pace(points) is None
