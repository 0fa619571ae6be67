"""Times of cron expressions where clocks are put forward and back, as in Debian's cron, and what becomes of misses."""

from datetime import UTC, datetime, timedelta

import pytest

from core.errors import SpecInvalid
from core.jobs.templates import schedules
from core.jobs.templates.schedules import first_after, next_times, take

BERLIN = "Europe/Berlin"


def utc(text):
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


@pytest.mark.parametrize(
    ("cron", "after", "expected"),
    [
        # 29 March 2026: 02:00 to 03:00 does not exist, and 03:00 is 01:00 UTC.
        ("30 2 * * *", "2026-03-28 12:00", ["2026-03-29 01:00", "2026-03-30 00:30"]),
        ("0 2,3 * * *", "2026-03-28 12:00", ["2026-03-29 01:00", "2026-03-30 00:00", "2026-03-30 01:00"]),
        ("0 3 * * *", "2026-03-27 12:00", ["2026-03-28 02:00", "2026-03-29 01:00", "2026-03-30 01:00"]),
        ("30 * * * *", "2026-03-29 00:00", ["2026-03-29 00:30", "2026-03-29 01:30"]),
        # 25 October 2026: 02:00 to 03:00 comes twice, from 00:00 and from 01:00 UTC.
        ("30 2 * * *", "2026-10-24 12:00", ["2026-10-25 00:30", "2026-10-26 01:30"]),
        ("30 2 * * *", "2026-10-25 00:30", ["2026-10-26 01:30"]),
        ("30 2 * * *", "2026-10-25 01:15", ["2026-10-26 01:30"]),
        ("0 3 * * *", "2026-10-25 00:59", ["2026-10-25 02:00", "2026-10-26 02:00"]),
        ("30 * * * *", "2026-10-25 00:00", ["2026-10-25 00:30", "2026-10-25 01:30", "2026-10-25 02:30"]),
        ("0 0 29 2 *", "2026-01-01 00:00", ["2028-02-28 23:00"]),
    ],
)
def test_clocks_that_are_put_forward_or_back(cron, after, expected):
    found = next_times(cron, BERLIN, utc(after), len(expected))
    assert [f"{at:%Y-%m-%d %H:%M}" for at in found] == expected


@pytest.mark.parametrize("zone", [BERLIN, "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu", "UTC"])
@pytest.mark.parametrize("cron", ["30 2 * * *", "15 1,2,3 * * *", "*/20 * * * *", "0 */3 * * *", "59 23 * * SUN"])
def test_every_step_goes_on_from_the_one_before(zone, cron):
    """Times found one by one, as a schedule moves on, are those found in a row: none is doubled or left out."""
    start = utc("2026-01-01 00:00")
    at, in_a_row = start, next_times(cron, zone, start, 1500 if cron.startswith("*") else 300)
    for expected in in_a_row:
        at = first_after(cron, zone, at)
        assert at == expected
    assert sorted(set(in_a_row)) == in_a_row
    assert first_after(cron, zone, in_a_row[9] + timedelta(seconds=0.5)) == in_a_row[10]


@pytest.mark.parametrize(
    ("cron", "zone", "field"),
    [
        *((text, "UTC", "cron") for text in ("", "* * * *", "* * * * * *", "@daily", "61 * * * *", "0 0 30 2 *")),
        *((text, "UTC", "cron") for text in ("5#1/2 * * * *", "a b c d e", "٣ * * * *", "0 0 * * " + "1," * 60, "\0")),
        *(("* * * * *", zone, "timezone") for zone in ("", "Mars/Olympus", "../UTC", "Europe", "CEST", "a\0", "/etc")),
    ],
)
def test_what_has_no_times_is_refused(cron, zone, field):
    with pytest.raises(SpecInvalid) as refused:
        schedules.check(cron, zone)
    assert refused.value.field == field


DUE, LATE = utc("2026-06-01 03:00"), utc("2026-06-04 12:34")


@pytest.mark.parametrize(
    ("on_miss", "current", "at", "following"),
    [
        *((policy, DUE, DUE, "2026-06-02 03:00") for policy in ("skip", "once", "all")),
        *((policy, DUE + timedelta(minutes=1), DUE, "2026-06-02 03:00") for policy in ("skip", "once", "all")),
        ("all", LATE, DUE, "2026-06-02 03:00"),
        ("once", LATE, DUE, "2026-06-05 03:00"),
        ("skip", LATE, None, "2026-06-05 03:00"),
        ("skip", utc("2026-06-04 03:01"), None, "2026-06-04 03:00"),  # the last of them is not missed
    ],
)
def test_missed_times(on_miss, current, at, following):
    assert take("0 3 * * *", "UTC", on_miss, DUE, current) == (at, utc(following))
