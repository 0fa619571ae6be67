"""The polling rate of a followed log."""

import pytest

from service.log_stream.feed import PollRateLimiter


def looks(pace, start, changes):
    """Compute the times at which a log that changes all the time is read."""
    at, found = start, []
    for _ in range(changes):
        found.append(at)
        at = max(at + 1e-4, pace.next_poll_at(at))
    return found


def test_a_few_changes_are_seen_at_once_and_many_a_hundred_times_a_second():
    pace = PollRateLimiter()
    found = looks(pace, 1000.0, 200)
    assert found[4] - found[0] < 0.001
    assert found[-1] - found[0] == pytest.approx((200 - 6) / 100, abs=0.02)


def test_a_flood_costs_no_later_line_its_time():
    pace = PollRateLimiter()
    for page in range(1000):  # pages of a long log are sent without a pause
        pace.next_poll_at(1000.0 + page / 10_000)
    assert pace.next_poll_at(1000.1) - 1000.1 <= 0.0101
    assert looks(pace, 1000.3, 5)[-1] < 1000.301, "and a rest gives the few back"
