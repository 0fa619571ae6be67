"""Costs of jobs in US dollars and GPU hours, over all of their attempts: expressions of SQL, and sums."""

import threading
from collections.abc import Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Literal
from weakref import WeakKeyDictionary

from sqlalchemy import (
    ColumnElement,
    Engine,
    Float,
    SQLColumnExpression,
    and_,
    case,
    cast,
    func,
    literal,
    or_,
    select,
    true,
)
from sqlalchemy.orm import Session

from core.db.database import UtcDateTime, now
from core.db.models.jobs import IS_ATTEMPTED, Attempt, Job
from core.jobs import cloud_resources
from core.jobs.cloud_resources import CloudResource
from core.jobs.states import JobState

Unit = Literal["usd", "gpu_hours"]
SETTLED_SECONDS = 60  # after this time no transaction that ends a job is still open: statements end after 15 s
START = datetime.fromisoformat("1970-01-01T00:00+00:00")
_KEPT_SUMS = 256


def seconds_between(dialect: str, start: SQLColumnExpression[Any], until: ColumnElement[Any]) -> ColumnElement[float]:
    if dialect == "postgresql":
        return cast(func.extract("epoch", until - start), Float)
    return (func.julianday(until) - func.julianday(start)) * 86400.0


def duration(dialect: str, job: type[Job] = Job) -> ColumnElement[float]:
    """Return the running time of a job's last attempt, seconds; NULL before its start."""
    return seconds_between(dialect, job.started_at, func.coalesce(job.ended_at, job.finished_at, now()))


def _since(dialect: str, start: SQLColumnExpression[Any], until: Any, since: datetime | None) -> ColumnElement[float]:  # noqa: ANN401 - of SQL
    """Return the seconds of a time that lie after `since`; 0 if there are none."""
    if since is not None:
        start = case((start < literal(since, UtcDateTime()), literal(since, UtcDateTime())), else_=start)
    return case((until > start, seconds_between(dialect, start, until)), else_=0.0)


def ran_seconds(dialect: str, job: type[Job] = Job, since: datetime | None = None) -> ColumnElement[float]:
    """Return the running time of all attempts of a job, seconds."""
    current = case((Attempt.attempt == job.attempt, func.coalesce(job.finished_at, now())))
    seconds = _since(dialect, Attempt.started_at, func.coalesce(Attempt.ended_at, current), since)
    of_attempts = select(func.sum(seconds)).where(Attempt.job_id == job.id).correlate(job)
    return func.coalesce(of_attempts.scalar_subquery(), 0.0)


def cost(dialect: str, job: type[Job] = Job, since: datetime | None = None) -> ColumnElement[float]:
    """Return what a job has cost, US dollars: its cloud resources, without any its running time."""
    until = func.coalesce(CloudResource.billed_until, CloudResource.gone_at, now())
    price = func.coalesce(CloudResource.price_per_hour, job.price_per_hour)
    billed = func.coalesce(_since(dialect, CloudResource.billed_at, until, since), 0.0) * price / 3600.0
    of_resources = select(func.sum(billed)).where(CloudResource.job_id == job.id).correlate(job)
    ran = ran_seconds(dialect, job, since) * job.price_per_hour / 3600.0
    return func.coalesce(of_resources.scalar_subquery(), ran)


def gpu_hours(dialect: str, job: type[Job] = Job, since: datetime | None = None) -> ColumnElement[float]:
    return ran_seconds(dialect, job, since) * job.gpu_count / 3600.0


def amount(unit: Unit, dialect: str, since: datetime | None = None) -> ColumnElement[float]:
    return (cost if unit == "usd" else gpu_hours)(dialect, Job, since)


def of_jobs(session: Session, ids: Sequence[str]) -> dict[str, tuple[float, float]]:
    """Return the US dollars and GPU hours of jobs, by id."""
    dialect = session.get_bind().dialect.name
    query = select(Job.id, cost(dialect), gpu_hours(dialect)).where(Job.id.in_(ids))
    return {job_id: (dollars, hours) for job_id, dollars, hours in session.execute(query)} if ids else {}


def reserved(session: Session, unit: Unit, jobs: ColumnElement[bool]) -> float:
    """Return what the current attempts of jobs can still cost until they are stopped."""
    dialect = session.get_bind().dialect.name
    ran = func.coalesce(duration(dialect), 0.0)
    rate: SQLColumnExpression[float] = Job.price_per_hour if unit == "usd" else Job.gpu_count
    spent: ColumnElement[float] = ran * rate / 3600.0
    if unit == "usd":
        until = func.coalesce(CloudResource.billed_until, CloudResource.gone_at, now())
        price = func.coalesce(CloudResource.price_per_hour, Job.price_per_hour)
        billed = func.coalesce(_since(dialect, CloudResource.billed_at, until, None), 0.0) * price / 3600.0
        of_attempt = CloudResource.job_id == Job.id, CloudResource.attempt == Job.attempt
        spent = func.coalesce(select(func.sum(billed)).where(*of_attempt).correlate(Job).scalar_subquery(), spent)
    most = Job.run_seconds * rate / 3600.0
    query = select(func.sum(case((most > spent, most - spent), else_=0.0)))
    return (
        session.scalar(
            query.where(IS_ATTEMPTED, jobs, Job.state.in_([JobState.STARTING, JobState.RUNNING, JobState.KEPT]))
        )
        or 0.0
    )


class _Sums:
    """Sums of jobs that have ended, which never cost more, up to a time: each call reads only what came later."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sums: dict[object, tuple[datetime, float]] = {}

    def spent(self, session: Session, unit: Unit, jobs: ColumnElement[bool], since: datetime, key: object) -> float:
        at: datetime = session.scalars(select(now())).one()
        settled = at - timedelta(seconds=SETTLED_SECONDS)
        if unit == "usd":  # machines in a cloud are summed by themselves: they may cost more after the end of a job
            jobs = and_(jobs, ~select(CloudResource.id).where(CloudResource.job_id == Job.id).exists())
        sums = partial(_sum, session, unit, jobs, since)
        with self._lock:
            until, total = self._sums.pop(key, (since, 0.0))
            if until < settled:
                total += sums(and_(Job.finished_at >= until, Job.finished_at < settled))
                until = settled
            self._sums[key] = until, total
            if len(self._sums) > _KEPT_SUMS:
                del self._sums[next(iter(self._sums))]
        return total + sums(Job.finished_at >= until) + sums(IS_ATTEMPTED)


_sums: WeakKeyDictionary[Engine, _Sums] = WeakKeyDictionary()


def _sum(session: Session, unit: Unit, jobs: ColumnElement[bool], since: datetime, of: ColumnElement[bool]) -> float:
    return session.scalar(select(func.sum(amount(unit, session.get_bind().dialect.name, since))).where(jobs, of)) or 0.0


def spent(session: Session, unit: Unit, jobs: ColumnElement[bool], since: datetime, key: object) -> float:
    """Return what jobs have cost since a time, also those that were deleted; `key` names these jobs."""
    sums = _sums.setdefault(session.get_bind().engine, _Sums())
    ran = sums.spent(session, unit, jobs, since, (key, unit, since))
    return ran if unit == "gpu_hours" else ran + cloud_resources.total_cost(session, since, jobs)


def spent_by_all(session: Session, since: datetime) -> tuple[float, dict[str, float]]:
    """Return the US dollars of all jobs since a time, and their GPU hours on machine types without a price, by type."""
    free = and_(Job.price_per_hour == 0, Job.gpu_count > 0)
    types = session.scalars(
        select(Job.machine_type).where(free, or_(Job.finished_at >= since, IS_ATTEMPTED)).distinct()
    )
    hours = {name: spent(session, "gpu_hours", and_(free, Job.machine_type == name), since, name) for name in types}
    return spent(session, "usd", true(), since, "all"), {name: amount for name, amount in hours.items() if amount}
