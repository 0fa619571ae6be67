"""Schedules in the database, and their times. `service.submission.schedules` creates their jobs.

Where clocks are put forward or back, as in Debian's cron: a time that does not exist is the first minute after the gap,
and a time that comes twice is taken once, the first time. Expressions whose minute or hour begins with `*` follow the
time that passes instead: each hour that comes has its times.
"""

from collections.abc import Collection, Iterator, Sequence
from datetime import UTC, date, datetime, time, timedelta
from functools import cache, partial
from itertools import islice, product
from typing import Any
from zoneinfo import ZoneInfo, available_timezones

from cronsim import CronSim, CronSimError
from sqlalchemy import SQLColumnExpression, func, select, update
from sqlalchemy.orm import Session

from core.db.database import now
from core.db.models.credentials import ApiKey
from core.db.models.jobs import IS_ACTIVE, Job
from core.db.models.schedules import Schedule
from core.errors import SpecInvalid
from core.jobs.templates import templates
from core.security.actor import record_change

MISSED_AFTER = timedelta(minutes=1)  # a time is missed if nothing was there to create its job for so long
_MAX_WAIT = timedelta(days=50 * 365)  # 29 February is on a given day of the week every 28 years, around 2100 every 40
_DAY, _QUARTER, _MINUTE = timedelta(days=1), timedelta(minutes=15), timedelta(minutes=1)
_FIELDS = 5
_MAX_CRON = 100
_zones = cache(available_timezones)

get = partial(templates.get, Schedule)


def check(cron: str, timezone: str) -> None:
    """Refuse a cron expression or a time zone that has no times."""
    if first_after(cron, timezone, datetime.now(UTC)) is None:
        raise SpecInvalid(
            f"{cron!r} never occurs in the next {_MAX_WAIT.days // 365} years in {timezone}: choose days that "
            "exist, and an hour that daylight saving time does not skip.",
            field="cron",
        )


def times_after(cron: str, timezone: str, after: datetime) -> Iterator[datetime]:
    """Yield the times after a moment, in UTC, in order; none follows if there is none for `_MAX_WAIT`."""
    expression, zone = _parse(cron), _zone(timezone)
    times = _elapsed_times if any(field.startswith("*") for field in expression.parts[1:3]) else _clock_times
    last = after
    for at in times(expression, zone, after):
        if at > last:  # the first ones are of before, and several times in a gap are one
            last = at
            yield at


def _zone(timezone: str) -> ZoneInfo:
    if timezone not in _zones():
        raise SpecInvalid(
            f"{timezone[:80]!r} is not a time zone. Give a name such as Europe/Berlin or UTC.", field="timezone"
        )
    return ZoneInfo(timezone)


def _parse(cron: str) -> CronSim:
    fault = f"longer than {_MAX_CRON} characters" if len(cron) > _MAX_CRON else None
    if fault is None and len(cron.split()) != _FIELDS:
        fault = f"{len(cron.split())} fields instead of {_FIELDS}"
    if fault is None:
        try:
            return CronSim(cron, datetime.now(UTC))
        except (CronSimError, AssertionError, TypeError) as error:  # the last two: FRI#2/2
            fault = str(error) or "Bad step"
    raise SpecInvalid(
        f"{cron[:_MAX_CRON]!r} is not a cron expression: {fault}. Give minute, hour, day of the month, month and "
        "day of the week, such as '0 3 * * *' or '*/15 8-18 * * MON-FRI'.",
        field="cron",
    )


def _days(expression: CronSim, first: date) -> Iterator[date]:
    """Yield the days of an expression from one on."""
    day, end = first, first + _MAX_WAIT
    while day < end:
        if day.month not in expression.months:
            day = (day.replace(day=1) + timedelta(days=32)).replace(day=1)
            continue
        if expression.match_day(day):
            yield day
            end = day + _MAX_WAIT
        day += _DAY


def _clock_times(expression: CronSim, zone: ZoneInfo, after: datetime) -> Iterator[datetime]:
    """Yield the first minute at which a clock shows each time of an expression, or a later one."""
    for day in _days(expression, after.astimezone(zone).date() - _DAY):
        for hour, minute in product(sorted(expression.hours), sorted(expression.minutes)):
            local = datetime.combine(day, time(hour, minute))
            at = local.replace(tzinfo=zone).astimezone(UTC)
            while (at - _MINUTE).astimezone(zone).replace(tzinfo=None) >= local:  # in a gap
                at -= _MINUTE
            yield at


def _elapsed_times(expression: CronSim, zone: ZoneInfo, after: datetime) -> Iterator[datetime]:
    """Yield each minute at which a clock shows a time of an expression.

    Goes by quarters of an hour, of which all zones' offsets and changes are multiples since 1972.
    """
    at = after.replace(minute=after.minute // 15 * 15, second=0, microsecond=0)
    end = at + _MAX_WAIT
    while at < end:
        local = at.astimezone(zone)
        # The day before may come back, if clocks are put back over midnight.
        day = next(_days(expression, local.date() - _DAY), None)
        if day is None:
            return
        if day > local.date():
            midnights = (datetime.combine(day, time(), zone).replace(fold=fold) for fold in (0, 1))
            at = max(at + _QUARTER, min(midnight.astimezone(UTC) for midnight in midnights))
            continue
        if local.hour in expression.hours and local.month in expression.months and expression.match_day(local):
            for minute in range(15):
                if local.minute + minute in expression.minutes:
                    end = at + _MAX_WAIT
                    yield at + minute * _MINUTE
        at += _QUARTER


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


def due(session: Session, current: datetime) -> list[Schedule]:
    return list(session.scalars(select(Schedule).where(Schedule.next_at <= current).order_by(Schedule.next_at)))


def move_on(session: Session, schedule: Schedule, next_at: datetime | None) -> bool:
    """Take the time of a schedule that was read as due; False if it was taken, or suspended, meanwhile."""
    mine = update(Schedule).where(Schedule.seq == schedule.seq, Schedule.next_at == schedule.next_at)
    taken = mine.values(next_at=next_at).returning(Schedule.seq)
    return session.scalar(taken, execution_options={"synchronize_session": False}) is not None


def record_outcome(session: Session, schedule: Schedule, refusal: str | None, at: datetime | None) -> None:
    """Store why there is no job for a time; None: there is one."""
    values = {"refusal": refusal, "refused_at": None if refusal is None else at}
    statement = update(Schedule).where(Schedule.seq == schedule.seq).values(values)
    session.execute(statement.execution_options(synchronize_session=False))


def suspend(session: Session, schedule_id: str) -> Schedule:
    schedule = get(session, schedule_id, lock=True)
    schedule.next_at = None
    record_change(session, "schedule_suspended", schedule_id)
    session.flush()
    return schedule


def resume(session: Session, schedule_id: str) -> Schedule:
    """Let a suspended schedule go on with its next time from now: what it was suspended over is not missed."""
    schedule = get(session, schedule_id, lock=True)
    if schedule.next_at is None:
        current = session.scalars(select(now())).one()
        schedule.next_at = first_after(schedule.cron, schedule.timezone, current)
        schedule.refusal = schedule.refused_at = None
        record_change(session, "schedule_resumed", schedule_id)
        session.flush()
    return schedule


def delete(session: Session, schedule_id: str) -> None:
    templates.delete(Schedule, session, schedule_id)


def unended_jobs(session: Session, schedule_id: str) -> list[Job]:
    """Return the jobs of a schedule that have not ended, oldest first."""
    unended = select(Job).where(Job.schedule_id == schedule_id, IS_ACTIVE, Job.deleted_at.is_(None))
    return list(session.scalars(unended.order_by(Job.seq)))


_last_job = select(func.max(Job.seq)).where(Job.schedule_id == Schedule.id, Job.deleted_at.is_(None)).scalar_subquery()


def orders() -> dict[str, SQLColumnExpression[Any]]:
    """Return what a list of schedules can be ordered by."""
    owner = select(ApiKey.name).where(ApiKey.id == Schedule.submitted_by).scalar_subquery()
    return {
        "name": templates.shown_name(Schedule),
        "times": Schedule.cron,
        "next": Schedule.next_at,
        "last": _last_job,
        "owner": func.lower(func.coalesce(owner, Schedule.submitted_by)),
        "created": Schedule.seq,
    }


def last_jobs(session: Session, ids: Collection[str]) -> Sequence[Job]:
    """Return of each of these schedules the job that it created last, if it is not deleted."""
    seqs = session.scalars(select(_last_job).where(Schedule.id.in_(ids))).all()
    return session.scalars(select(Job).where(Job.seq.in_([seq for seq in seqs if seq is not None]))).all()
