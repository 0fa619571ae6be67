"""The share of waiting for input: right beside programs that use the machine, too, or not measured."""

import os
import subprocess
import sys

import pytest
from support.keras_process_functions import input_wait
from support.trainer_process import call_with_keras

NOT_MEASURED = {"steps_per_second_without_input": None, "wait_share": None, "wait_share_error": None}


@pytest.fixture(params=["nobody", "twice"])
def neighbours(request):
    """Other users of the machine: nobody, or twice as many busy processes as CPUs."""
    command = [sys.executable, "-c", "while True: pass"]
    count = 2 * len(os.sched_getaffinity(0)) if request.param == "twice" else 0
    running = [subprocess.Popen(command) for _ in range(count)]
    yield request.param
    for each in running:
        each.kill()
        each.wait()


@pytest.mark.slow  # tests/e2e/training/test_compare.py has a starved job and one that is not
@pytest.mark.parametrize(
    ("input_seconds", "step_seconds", "share"), [(0.06, 0.03, 0.5), (0.05, 0.005, 0.9), (0.005, 0.03, 0)]
)
def test_the_share_is_that_of_known_times(input_seconds, step_seconds, share, neighbours):
    quiet = neighbours == "nobody"
    for _ in range(4 if quiet else 1):
        found = call_with_keras(input_wait, input_seconds, step_seconds, 1 / max(input_seconds, step_seconds))
        if found["wait_share"] is not None:
            break
    of_input = found.pop("input_seconds")
    if not quiet and found["wait_share"] is None:
        assert found == NOT_MEASURED | {"steps_per_second_without_input": found["steps_per_second_without_input"]}
        return  # too uncertain beside so many, which is said, and never a wrong share
    assert found["wait_share"] is not None
    if not quiet:  # input and steps take longer, each by another factor
        share = max(0, 1 - 1 / (found["steps_per_second_without_input"] * of_input))
    assert abs(found["wait_share"] - share) <= 0.1 + found["wait_share_error"]
    assert found["wait_share_error"] <= 0.15


def test_few_or_slow_steps_are_not_measured():
    assert call_with_keras(input_wait, 0.01, 4.0, 0.25) == {**NOT_MEASURED, "input_seconds": None}, (
        "there is no time for it"
    )
    assert call_with_keras(input_wait, 0.01, 0.01, None) == {**NOT_MEASURED, "input_seconds": None}, (
        "the training has no pace"
    )
