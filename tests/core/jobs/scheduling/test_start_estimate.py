"""Estimates: an example by hand, and what must hold of every one."""

from hypothesis import given
from hypothesis import strategies as st

from core.jobs.scheduling import start_estimate

seconds = st.floats(0, 1e6)
servers = st.lists(seconds, min_size=1, max_size=8)


def test_an_example_by_hand():
    # Jobs last 100 s. Two slots: one is free now, the other's job has run for 70 s.
    free_in = start_estimate.slot_free_times(1, [start_estimate.remaining_seconds([100] * 3, 70)[0]], 2)
    assert free_in == [0, 30]
    # The free slot is taken at 0, the other at 30, the first again at 100, the second at 130, and so on.
    assert start_estimate.start_times(free_in, 100, range(1, 6)) == {1: 0, 2: 30, 3: 100, 4: 130, 5: 200}


def test_of_a_job_that_outlived_the_others_nothing_is_known():
    durations = [10, 80, 100, 120]
    assert start_estimate.remaining_seconds(durations, 40) == (40, 80), "it has outlived the first"
    assert start_estimate.remaining_seconds(durations, 101) == (0, float("inf")), "too few are left"
    assert start_estimate.remaining_seconds(durations, -3) == (10, 120), "a clock that went back"
    assert start_estimate.start_times([float("inf")] * 2, 100, [1]) == {}
    assert start_estimate.start_times([float("inf"), 30], 100, [1, 2]) == {1: 30, 2: 130}


def test_where_a_job_needs_the_room_of_several_the_last_of_them_decides():
    assert start_estimate.slot_free_times(0, [50, 10, 30, 20], 1) == [50]
    assert start_estimate.slot_free_times(1, [50, 10], 2) == [0, 50]
    assert start_estimate.slot_free_times(3, [], 2) == [0, 0]
    assert start_estimate.slot_free_times(0, [5], 0) == []


def test_without_a_slot_or_without_a_history_nothing_is_said():
    assert start_estimate.start_times([], 10, [1]) == {}
    assert start_estimate.start_times([1], 10, []) == {}


@given(servers, seconds, st.integers(1, 60))
def test_one_more_slot_never_delays_anybody(free_in, lasts, place):
    fewer = start_estimate.start_times(free_in, lasts, [place])[place]
    assert start_estimate.start_times([*free_in, 0.0], lasts, [place])[place] <= fewer


def test_the_millionth_place_costs_no_more_than_the_first():
    assert start_estimate.start_times([0, 5], 10, [2_000_001]) == {2_000_001: 10_000_000}
