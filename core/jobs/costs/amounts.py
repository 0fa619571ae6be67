"""Costs of jobs in US dollars and GPU hours, over all of their attempts: expressions of SQL, and sums."""

import threading
from collections.abc import Sequence
from datetime import datetime, timedelta
from functools import cache, lru_cache
from typing import Any, Literal
from weakref import WeakKeyDictionary

from sqlalchemy import (
    ColumnElement,
    Engine,
    Float,
    SQLColumnExpression,
    String,
    and_,
    bindparam,
    case,
    cast,
    func,
    literal_column,
    select,
)
from sqlalchemy.orm import Session

from core.db.database import UtcDateTime, now
from core.db.models.jobs import IS_ATTEMPTED, Attempt, Job
from core.db.prepared import Prepared
from core.jobs.cloud_resources import CloudResource
from core.jobs.states import JobState

Unit = Literal["usd", "gpu_hours"]
SETTLED_SECONDS = 60  # after this time no transaction that ends a job is still open: statements end after 15 s
START = datetime.fromisoformat("1970-01-01T00:00+00:00")
_KEPT_SUMS = 256
_KEPT_EXPRESSIONS = 32  # to build one takes as long as to run a query with it
_Time = ColumnElement[datetime] | None
_NOW = Prepared(select(now()))
SUBJECTS = {
    "project": Job.project_id,
    "user": Job.user_id,
    "key": Job.submitted_by,
    "set": Job.cost_set,
    "job": Job.id,
    "array": Job.array_id,
}


def seconds_between(dialect: str, start: SQLColumnExpression[Any], until: ColumnElement[Any]) -> ColumnElement[float]:
    if dialect == "postgresql":
        return cast(func.extract("epoch", until - start), Float)
    return (func.julianday(until) - func.julianday(start)) * 86400.0


@lru_cache(_KEPT_EXPRESSIONS)
def duration(dialect: str, job: type[Job] = Job) -> ColumnElement[float]:
    """Return the running time of a job's last attempt, seconds; NULL before its start."""
    return seconds_between(dialect, job.started_at, func.coalesce(job.ended_at, job.finished_at, now()))


def _within(dialect: str, start: SQLColumnExpression[Any], until: Any, since: _Time, at: _Time) -> ColumnElement[float]:  # noqa: ANN401 - of SQL
    """Return the seconds of a time that lie after `since` and before `at`; 0 if there are none."""
    if since is not None:
        start = case((start < since, since), else_=start)
    if at is not None:
        until = case((until > at, at), else_=until)
    return case((until > start, seconds_between(dialect, start, until)), else_=0.0)


def ran_seconds(dialect: str, job: type[Job] = Job, since: _Time = None, at: _Time = None) -> ColumnElement[float]:
    """Return the running time of all attempts of a job, seconds. `at`: what follows is left out; by default nothing."""
    current = case((Attempt.attempt == job.attempt, func.coalesce(job.finished_at, now() if at is None else at)))
    seconds = _within(dialect, Attempt.started_at, func.coalesce(Attempt.ended_at, current), since, at)
    of_attempts = select(func.sum(seconds)).where(Attempt.job_id == job.id).correlate_except(Attempt)
    return func.coalesce(of_attempts.scalar_subquery(), 0.0)


def _billed(
    dialect: str, job_price: SQLColumnExpression[float], since: _Time = None, at: _Time = None
) -> ColumnElement[float]:
    """Return what a machine in a cloud has cost, US dollars."""
    until = func.coalesce(CloudResource.billed_until, CloudResource.gone_at, now() if at is None else at)
    price = func.coalesce(CloudResource.price_per_hour, job_price)
    return func.coalesce(_within(dialect, CloudResource.billed_at, until, since, at), 0.0) * price / 3600.0


@lru_cache(_KEPT_EXPRESSIONS)
def cost(dialect: str, job: type[Job] = Job, since: _Time = None, at: _Time = None) -> ColumnElement[float]:
    """Return what a job has cost, US dollars: its cloud resources, without any its running time."""
    billed = _billed(dialect, job.price_per_hour, since, at)
    of_resources = select(func.sum(billed)).where(CloudResource.job_id == job.id).correlate_except(CloudResource)
    ran = ran_seconds(dialect, job, since, at) * job.price_per_hour / 3600.0
    return func.coalesce(of_resources.scalar_subquery(), ran)


@lru_cache(_KEPT_EXPRESSIONS)
def gpu_hours(dialect: str, job: type[Job] = Job, since: _Time = None, at: _Time = None) -> ColumnElement[float]:
    return case((job.gpu_count > 0, ran_seconds(dialect, job, since, at) * job.gpu_count / 3600.0), else_=0.0)


def amount(unit: Unit, dialect: str, since: _Time = None) -> ColumnElement[float]:
    return (cost if unit == "usd" else gpu_hours)(dialect, Job, since)


def of_jobs(session: Session, ids: Sequence[str]) -> dict[str, tuple[float, float]]:
    """Return the US dollars and GPU hours of jobs, by id."""
    dialect = session.get_bind().dialect.name
    query = select(Job.id, cost(dialect), gpu_hours(dialect)).where(Job.id.in_(ids))
    return {job_id: (dollars, hours) for job_id, dollars, hours in session.execute(query)} if ids else {}


def _attempt_amount(dialect: str, unit: Unit) -> ColumnElement[float]:
    """Return what the current attempt of a job has taken."""
    ran = func.coalesce(duration(dialect), 0.0)
    if unit == "gpu_hours":
        return ran * Job.gpu_count / 3600.0
    of_attempt = CloudResource.job_id == Job.id, CloudResource.attempt == Job.attempt
    machines = select(func.sum(_billed(dialect, Job.price_per_hour))).where(*of_attempt).correlate(Job)
    return func.coalesce(machines.scalar_subquery(), ran * Job.price_per_hour / 3600.0)


@cache
def _sum_of(dialect: str, unit: Unit, kind: str, part: str) -> Prepared:
    """Return the statement that sums a part of what the jobs of a subject have taken since a time, or reserve."""
    since, jobs = bindparam("since", type_=UtcDateTime), condition(kind, bindparam("subject", type_=String))
    if part == "reserved":
        rate: SQLColumnExpression[Any] = Job.price_per_hour if unit == "usd" else Job.gpu_count
        most, taken = Job.run_seconds * rate / 3600.0, _attempt_amount(dialect, unit)
        held = Job.state.in_([literal_column(f"'{s}'") for s in (JobState.STARTING, JobState.RUNNING, JobState.KEPT)])
        others = Job.id != bindparam("without", type_=String)
        rest = select(func.sum(case((most > taken, most - taken), else_=0.0)))
        return Prepared(rest.where(IS_ATTEMPTED, held, others, jobs))
    if part == "machines":
        ended_at = func.coalesce(CloudResource.billed_until, CloudResource.gone_at, now())
        billed = select(func.sum(_billed(dialect, Job.price_per_hour, since)))
        of_jobs = billed.join_from(CloudResource, Job, Job.id == CloudResource.job_id)
        return Prepared(of_jobs.where(ended_at > since, jobs))
    if unit == "usd":  # machines in a cloud are summed by themselves: they may cost more after the end of a job
        jobs = and_(jobs, ~select(CloudResource.id).where(CloudResource.job_id == Job.id).exists())
    first, last = bindparam("first", type_=UtcDateTime), bindparam("last", type_=UtcDateTime)
    ended = and_(Job.finished_at >= first, Job.finished_at < last)
    return Prepared(
        select(func.sum(amount(unit, dialect, since))).where(ended if part == "ended" else IS_ATTEMPTED, jobs)
    )


def condition(kind: str, subject: Any) -> ColumnElement[bool]:  # noqa: ANN401 - a value or a parameter
    """Build the condition that a job is one of a subject's."""
    if kind == "all":
        return func.coalesce(subject, "") == ""
    column: Any = SUBJECTS[kind]
    matches: ColumnElement[bool] = column == subject
    return matches


def reserved(session: Session, unit: Unit, kind: str, subject: str, without: str = "") -> float:
    """Return what the current attempts of jobs can still cost until they are stopped; `without`: id of another job."""
    values = {"subject": subject, "without": without}
    return _sum_of(session.get_bind().dialect.name, unit, kind, "reserved").rows(session, values)[0][0] or 0.0


class _Sums:
    """Sums of jobs that have ended, which never cost more, up to a time: each call reads only what came later."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sums: dict[object, tuple[datetime, float]] = {}

    def spent(self, session: Session, unit: Unit, kind: str, subject: str, since: datetime) -> float:
        dialect, key = session.get_bind().dialect.name, (unit, kind, subject, since)
        ((at,),) = _NOW.rows(session, {})
        settled = at - timedelta(seconds=SETTLED_SECONDS)
        values = {"subject": subject, "since": since}

        def total(part: str, **more: datetime) -> float:
            return _sum_of(dialect, unit, kind, part).rows(session, values | more)[0][0] or 0.0

        with self._lock:
            until, ended = self._sums.pop(key, (since, 0.0))
            if until < settled:
                ended += total("ended", first=until, last=settled)
                until = settled
            self._sums[key] = until, ended
            if len(self._sums) > _KEPT_SUMS:
                del self._sums[next(iter(self._sums))]
        lately = total("ended", first=until, last=at + timedelta(days=1))
        return ended + lately + total("attempted") + (total("machines") if unit == "usd" else 0.0)


_sums: WeakKeyDictionary[Engine, _Sums] = WeakKeyDictionary()


def spent(session: Session, unit: Unit, kind: str, subject: str, since: datetime) -> float:
    """Return what the jobs of a subject have cost since a time, also those that were deleted."""
    return _sums.setdefault(session.get_bind().engine, _Sums()).spent(session, unit, kind, subject, since)
