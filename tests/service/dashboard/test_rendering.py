"""Formatting of values on pages."""

import pytest

from core.formatting import format_dollars, format_price
from service.dashboard.rendering import (
    artifact_url,
    format_optional_duration,
    format_sentence,
    job_url,
    jobs_url,
    strip_colours,
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


@pytest.mark.parametrize(
    ("amount", "text"),
    [(0, "$0.00"), (0.00001, "<$0.0001"), (0.0123, "$0.0123"), (1, "$1.00"), (1234.5, "$1,234.50")],
)
def test_costs(amount, text):
    assert format_dollars(amount) == text


@pytest.mark.parametrize(("amount", "text"), [(8, "$8.00"), (0.45, "$0.45"), (0.473, "$0.473"), (1.4625, "$1.4625")])
def test_prices(amount, text):
    assert format_price(amount) == text


@pytest.mark.parametrize(
    ("text", "markup"),
    [
        ("run `gradient-cli <x>` now", "run <code>gradient-cli &lt;x&gt;</code> now"),
        ("<b> & an odd ` one", "&lt;b&gt; &amp; an odd ` one"),
        ("", ""),
    ],
)
def test_sentences(text, markup):
    assert str(format_sentence(text)) == markup


def test_colours_are_left_out_where_nothing_draws_them():
    assert strip_colours("\x1b[1;31mred\x1b[0m and\x1b[38;2;1;2;3m blue") == "red and blue"


def test_addresses():
    assert jobs_url(state="", project="a b", after=None) == "/ui/jobs?project=a+b"
    assert job_url("j1", "/artifacts", folder="a&b/") == "/ui/jobs/j1/artifacts?folder=a%26b%2F"
    assert artifact_url("j1", "a b/#?%41.txt") == "/jobs/j1/artifacts/file/a%20b/%23%3F%2541.txt"
