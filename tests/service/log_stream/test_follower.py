"""The polling rate of a followed log."""

from service.log_stream.feed import PollRateLimiter


def looks(pace, start, changes):
    """Compute the times at which a log that changes all the time is read."""
    at, found = start, []
    for _ in range(changes):
        found.append(at)
        at = max(at + 1e-4, pace.next_poll_at(at))
    return found


def test_a_flood_costs_no_later_line_its_time():
    pace = PollRateLimiter()
    for page in range(1000):  # pages of a long log are sent without a pause
        pace.next_poll_at(1000.0 + page / 10_000)
    assert pace.next_poll_at(1000.1) - 1000.1 <= 0.0101
    assert looks(pace, 1000.3, 5)[-1] < 1000.301, "and a rest gives the few back"
