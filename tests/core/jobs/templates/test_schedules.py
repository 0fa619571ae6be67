"""Times of cron expressions where clocks are put forward and back, as in Debian's cron, and what becomes of misses."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo, available_timezones

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


MINUTE, DAY = timedelta(minutes=1), timedelta(days=1)


@pytest.fixture(scope="module")
def changes():
    """A zone and a moment of each kind of change of the clocks in 2026 to 2028: from which time to which."""
    kinds = {}
    for zone in map(ZoneInfo, sorted(available_timezones())):
        weeks = [utc("2026-01-01 00:00") + n * 7 * DAY for n in range(3 * 52)]
        for start, end in pairwise(weeks):
            offset = start.astimezone(zone).utcoffset()
            if end.astimezone(zone).utcoffset() != offset:
                quarters = (start + n * 15 * MINUTE for n in range(7 * 96 + 1))
                at = next(quarter for quarter in quarters if quarter.astimezone(zone).utcoffset() != offset)
                kinds.setdefault(
                    (f"{(at - MINUTE).astimezone(zone):%H:%M}", f"{at.astimezone(zone):%H:%M}"), (zone, at)
                )
    assert {("02:44", "03:45"), ("01:59", "01:30"), ("23:59", "01:00"), ("23:59", "23:00")} <= set(kinds)
    return [(zone, at, *clocks(zone, at - DAY, at + DAY)) for zone, at in kinds.values()]


def clocks(zone, start, end):
    """Return what a clock on the wall shows at each minute, and of that, with what it leaves out, what is new."""
    shown, new = [], []
    highest = (start - DAY).astimezone(zone).replace(tzinfo=None)
    for at in (start + n * MINUTE for n in range(-1440, (end - start) // MINUTE + 1)):
        clock = at.astimezone(zone).replace(tzinfo=None)
        shown.append((at, clock))
        while highest < clock:
            highest += MINUTE
            new.append((at, highest))
    return [[one for one in minutes if one[0] > start] for minutes in (shown, new)]


def values(field):
    """Return the values of a field of an expression, of those of 0 to 59."""
    terms = (term.partition("/") for term in field.split(","))
    spans = ((span.replace("*", "0-59").partition("-"), step) for span, _, step in terms)
    return {n for (first, _, last), step in spans for n in range(int(first), int(last or first) + 1, int(step or 1))}


@pytest.mark.parametrize(
    "cron",
    [
        *(f"{minute} {hour} * * *" for minute in ("*/15", "*/20", "*", "0", "45", "59", "0,30") for hour in "0123"),
        *("*/10 2-3 * * *", "30 1,2 * * *", "0 */2 * * *", "30 * * * *", "*/15 9 * * *", "* 22-23 * * *", "0 23 * * *"),
        *("*/20 1 * * {weekday}", "*/30 0 {day} {month} *", "15 0 {day} {month} *", "59 23 {day} {month} *"),
    ],
)
def test_times_around_each_kind_of_change(changes, cron):
    """Found one by one, as a schedule moves on, they are those of a walk of all minutes."""
    for zone, change, shown, new in changes:
        local = change.astimezone(zone)
        text = cron.format(weekday=local.isoweekday() % 7, day=local.day, month=local.month)
        at, found = change - DAY + timedelta(seconds=0.5), []
        while (at := first_after(text, zone.key, at)) <= change + DAY:
            found.append(at)
        minutes, hours, days, months, weekdays = map(values, text.split())
        expected = {
            at
            for at, clock in (shown if any(field.startswith("*") for field in text.split()[:2]) else new)
            if clock.minute in minutes and clock.hour in hours
            if clock.day in days and clock.month in months and clock.isoweekday() % 7 in weekdays
        }
        assert found == sorted(expected), (text, zone.key)


@pytest.mark.parametrize(
    ("cron", "zone", "field"),
    [
        *((text, "UTC", "cron") for text in ("", "* * * *", "* * * * * *", "@daily", "61 * * * *", "0 0 30 2 *")),
        *((text, BERLIN, "cron") for text in ("*/15 2 * 3 0L", "0 0 31 2,4,6 */7", "0 0 * * FRI#2/2")),
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
