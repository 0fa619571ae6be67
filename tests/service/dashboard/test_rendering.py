"""Formatting of values on pages."""

import pytest

from service.dashboard.rendering import (
    format_optional_duration,
)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "\N{EN DASH}"),
        (0, "0.0 s"),
        (9.94, "9.9 s"),
        (42.7, "42 s"),
        (60, "1 min 00 s"),
        (3599, "59 min 59 s"),
        (7800, "2 h 10 min"),
        (273_600, "3 d 4 h"),
    ],
)
def test_durations(seconds, text):
    assert format_optional_duration(seconds) == text
