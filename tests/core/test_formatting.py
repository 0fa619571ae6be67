"""Human-readable numbers."""

import pytest

from core.formatting import format_short_duration, parse_duration


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90m", 5400), ("1h30m", 5400), ("2D", 172_800), ("1w", 604_800), ("0.5s", 0.5), ("90", None), ("soon", None)],
)
def test_durations_from_text(text, seconds):
    assert parse_duration(text) == seconds


def test_a_short_duration_is_read_as_it_is_written():
    assert format_short_duration(0) == "0s"
    for seconds in (59, 5400, 1_000_000):
        assert parse_duration(format_short_duration(seconds)) == seconds
