"""The times of a cron expression in a time zone.

Where clocks are put forward or back, as in Debian's cron: a time that does not exist is the first minute after the gap,
and a time that comes twice is taken once, the first time. Expressions whose minute or hour begins with `*` follow the
time that passes instead: each hour that comes has its times.
"""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import islice
from zoneinfo import ZoneInfo, available_timezones

from cronsim import CronSim, CronSimError

from core.errors import SpecInvalid

MISSED_AFTER = timedelta(minutes=1)  # a time is missed if nothing was there to create its job for so long
_FIELDS = 5
_MAX_CRON = 100
_zones = cache(available_timezones)


def check(cron: str, timezone: str) -> None:
    """Refuse a cron expression or a time zone that has no times."""
    if timezone not in _zones():
        raise SpecInvalid(
            f"{timezone[:80]!r} is not a time zone. Give a name such as Europe/Berlin or UTC.", field="timezone"
        )
    fault = f"longer than {_MAX_CRON} characters" if len(cron) > _MAX_CRON else None
    if fault is None and len(cron.split()) != _FIELDS:
        fault = f"{len(cron.split())} fields in place of {_FIELDS}"
    if fault is None:
        try:
            fault = None if first_after(cron, timezone, datetime.now(UTC)) else "it never comes"
        except CronSimError as error:
            fault = str(error)
    if fault is not None:
        raise SpecInvalid(
            f"{cron[:_MAX_CRON]!r} is no cron expression: {fault}. Give minute, hour, day of the month, month and day "
            "of the week, such as '0 3 * * *' or '*/15 8-18 * * MON-FRI'.",
            field="cron",
        )


def times_after(cron: str, timezone: str, after: datetime) -> Iterator[datetime]:
    """Yield the times after a moment, in UTC, each once and later than the one before."""
    last = after
    for local in CronSim(cron, after.astimezone(ZoneInfo(timezone))):
        at = local.astimezone(UTC)
        # In an hour that comes twice, CronSim begins again with its first time.
        if at > last:
            last = at
            yield at


def first_after(cron: str, timezone: str, after: datetime) -> datetime | None:
    return next(times_after(cron, timezone, after), None)


def next_times(cron: str, timezone: str, after: datetime, count: int) -> list[datetime]:
    return list(islice(times_after(cron, timezone, after), count))


def take(
    cron: str, timezone: str, on_miss: str, due: datetime, current: datetime
) -> tuple[datetime | None, datetime | None]:
    """Return the time to create a job for, None if there is none, and the time that comes next.

    `due`: the first time that none was created for. `on_miss`: `all`: one job for each missed time; `once`: one for all
    of them, as of the first; `skip`: none.
    """
    if on_miss == "all" or current - due <= MISSED_AFTER:
        return due, first_after(cron, timezone, due)
    if on_miss == "once":
        return due, first_after(cron, timezone, current)
    return None, first_after(cron, timezone, current - MISSED_AFTER - timedelta(microseconds=1))
