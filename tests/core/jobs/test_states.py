import itertools

import pytest

from core.jobs.states import OWNED, SOURCES, TERMINAL, TRANSITIONS, JobState


@pytest.mark.parametrize(("source", "target"), list(itertools.product(JobState, repeat=2)))
def test_sources_is_the_reverse_of_moves_for_every_pair(source, target):
    assert (target in TRANSITIONS[source]) == (source in SOURCES[target])


def test_every_state_is_either_waiting_owned_or_terminal():
    assert {JobState.QUEUED} | OWNED | TERMINAL == set(JobState)
    assert not OWNED & TERMINAL


def test_nothing_leaves_a_terminal_state():
    assert {state for state in JobState if not TRANSITIONS[state]} == {
        JobState.SUCCEEDED,
        JobState.FAILED,
        JobState.CANCELLED,
    }


def test_every_state_can_be_reached_and_ends():
    reached = {JobState.QUEUED}
    while True:
        more = reached | {target for source in reached for target in TRANSITIONS[source]}
        if more == reached:
            break
        reached = more
    assert reached == set(JobState)
    for state in set(JobState) - TERMINAL:
        assert TRANSITIONS[state], f"{state} is a dead end"
