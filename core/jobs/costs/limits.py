"""Ceilings and budgets: what they leave for an attempt, which reserves it when it is claimed, and so its deadline."""

import math
from calendar import monthrange
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from sqlalchemy import ColumnElement, String, bindparam, case, func, or_, select
from sqlalchemy.orm import Session

from core.db import turns
from core.db.database import Base, now
from core.db.models.budgets import Budget
from core.db.models.jobs import IS_ACTIVE, Job
from core.db.prepared import Prepared
from core.formatting import format_dollars, format_short_duration
from core.jobs.cloud_resources import CloudResource
from core.jobs.costs import amounts
from core.jobs.costs.amounts import Unit
from core.jobs.spec.job_spec import MAX_TIME_LIMIT, JobSpec
from core.jobs.states import OWNED, JobState

CLAIMS = "claims"  # the turn of those who reserve
_LEAST_SECONDS = 1.0  # for less an attempt is not begun
_SLICE_SECONDS = 60.0  # that each of many jobs gets at least, if there is so much or it can come
_HOUR = 3600.0
_PAYERS = ("project", "user", "key")
_PERIODS = {"day": "daily", "month": "monthly", "total": "total"}
_BUDGETS_TABLE = Base.metadata.tables[Budget.__tablename__]
_BUDGET_COLUMNS = [column.key for column in _BUDGETS_TABLE.c]
_BUDGETS = Prepared(
    select(*_BUDGETS_TABLE.c).where(
        or_(*(_BUDGETS_TABLE.c.subject == bindparam(kind, type_=String) for kind in _PAYERS))
    )
)


class Deadline(NamedTuple):
    seconds: float  # of running time, until the job is asked to end
    reason: str
    detail: str


def deadline(job: Job, machines: Iterable[CloudResource] = ()) -> Deadline | None:
    """Return when the current attempt is asked to end: at its time limit, its ceiling or the end of a budget.

    `machines`: those in a cloud that were created for it.
    """
    seconds = job.spec.time_limit if job.run_seconds is None else job.run_seconds
    if seconds is None:
        return None
    if job.run_limit is None:
        return Deadline(seconds, "time_limit", format_short_duration(round(seconds)))
    for machine in machines:
        if machine.billed_at is not None and job.started_at is not None:
            # It costs money before the command begins, and not always the price for which time was reserved.
            price = machine.price_per_hour or job.price_per_hour
            before = (job.started_at - machine.billed_at).total_seconds()
            seconds = (seconds * job.price_per_hour / price if price else seconds) - max(before, 0.0)
    return Deadline(max(seconds, 0.0), "cost_limit", job.run_limit)


def limited(job: Job) -> JobSpec:
    """Return the options of a job with the time limit that applies to the current attempt."""
    if job.run_seconds is None:
        return job.spec
    return JobSpec.from_json(job.spec.to_json() | {"time_limit": max(1, math.ceil(job.run_seconds))})


class Fund(NamedTuple):
    """Dollars or GPU hours that jobs share: a ceiling of a job or a set of jobs, or a budget."""

    kind: str  # job, set, project, user or key
    subject: str  # its id
    text: str  # for people
    unit: Unit
    amount: float
    since: datetime
    resets_at: datetime | None = None  # when all of it is there again; None: never

    def rate(self, job: Job) -> float:
        """Return what an hour of a job takes."""
        return job.price_per_hour if self.unit == "usd" else job.gpu_count

    def spent(self, session: Session) -> float:
        return amounts.spent(session, self.unit, self.kind, self.subject, self.since)

    def reserved(self, session: Session, without: str = "") -> float:
        """Return what the jobs that run can still cost. `without`: id of a job that does not count."""
        return amounts.reserved(session, self.unit, self.kind, self.subject, without)

    @property
    def is_budget(self) -> bool:
        return self.kind in _PAYERS

    @property
    def jobs(self) -> ColumnElement[bool]:
        return amounts.condition(self.kind, self.subject)


def set_of(job: Job) -> str:
    """Return the id of the set of jobs that shares the ceiling of this one, or its own id."""
    return job.cost_set or job.id


def ceilings_of(job: Job) -> list[Fund]:
    given: tuple[tuple[Unit, float | None, str], ...] = (
        ("usd", job.spec.max_cost, "maxCost"),
        ("gpu_hours", job.spec.max_gpu_hours, "maxGpuHours"),
    )
    kind = "job" if job.cost_set is None else "set"
    return [
        Fund(kind, set_of(job), f"its {name}, {format_amount(most, unit)}", unit, most, amounts.START)
        for unit, most, name in given
        if most is not None
    ]


def used_ceilings(session: Session) -> list[tuple[Fund, Job, float]]:
    """Return the ceilings of the jobs that run, each with one of its jobs and the part of it that is spent."""
    has_ceiling = or_(*(Job.spec_json[name].as_float().is_not(None) for name in ("max_cost", "max_gpu_hours")))
    jobs = {set_of(job): job for job in session.scalars(select(Job).where(Job.state.in_(OWNED), has_ceiling))}
    return [(fund, job, fund.spent(session) / fund.amount) for job in jobs.values() for fund in ceilings_of(job)]


def used_budgets(session: Session) -> list[tuple[Fund, float]]:
    """Return all budgets, each with the part of it that is spent in its period."""
    at = session.scalars(select(now())).one()
    funds = [fund_of(budget, at) for budget in session.scalars(select(Budget))]
    return [(fund, fund.spent(session) / fund.amount) for fund in funds]


def budgets_of(session: Session, job: Job) -> list[Fund]:
    """Return the budgets that a job is paid from."""
    subjects = {kind: getattr(job, amounts.SUBJECTS[kind].key) for kind in _PAYERS}
    rows = [Budget(**dict(zip(_BUDGET_COLUMNS, row, strict=True))) for row in _BUDGETS.rows(session, subjects)]
    at = session.scalars(select(now())).one() if rows else amounts.START
    return [fund_of(budget, at) for budget in rows if subjects[budget.kind] == budget.subject]


def fund_of(budget: Budget, at: datetime) -> Fund:
    begin = at.replace(hour=0, minute=0, second=0, microsecond=0)
    since = {"day": begin, "month": begin.replace(day=1)}.get(budget.period, amounts.START)
    return Fund(
        budget.kind,
        budget.subject,
        f"the {_PERIODS[budget.period]} budget of {budget.kind} {budget.name}, "
        f"{format_amount(budget.amount, budget.unit)}",
        "usd" if budget.unit == "usd" else "gpu_hours",
        budget.amount,
        since,
        resets_at(budget.period, since),
    )


def resets_at(period: str, since: datetime) -> datetime | None:
    """Return when a budget's period that began then ends; None: never."""
    days = {"day": 1, "month": monthrange(since.year, since.month)[1]}.get(period)
    return None if days is None else since + timedelta(days=days)


def format_amount(amount: float, unit: str) -> str:
    return format_dollars(amount) if unit == "usd" else f"{amount:,.4g} GPU hours"


class Admission(NamedTuple):
    """An attempt's time, as ceilings and budgets allow it."""

    seconds: float | None = None  # of running time; None: all
    limit: str | None = None  # what allows no more; None: the time limit
    lacking: Fund | None = None  # what has too little left to begin
    needed: float = 0.0  # of it, at least
    is_spent: bool = False  # whether it is a ceiling, and no job that runs can give anything back


def longest_seconds(job: Job) -> float | None:
    """Return for how long an attempt may run by its time limit and its whole ceilings; None: for ever."""
    bounds = [float(job.spec.time_limit)] if job.spec.time_limit is not None else []
    bounds += [fund.amount / rate * _HOUR for fund in ceilings_of(job) if (rate := fund.rate(job))]
    return min(bounds, default=None)


def admit(session: Session, jobs: Sequence[Job]) -> Admission:
    """Return for how long jobs that are claimed together may run; all have the same options."""
    job = jobs[0]
    seconds, limit = None if job.spec.time_limit is None else float(job.spec.time_limit), None
    for fund in ceilings_of(job):
        if not (rate := fund.rate(job) * len(jobs) / _HOUR):
            continue
        held = fund.reserved(session)
        most = (fund.amount - fund.spent(session) - held) / rate
        if most < _LEAST_SECONDS:
            return Admission(lacking=fund, is_spent=not held)
        share = max(most / max(1, _waiting(session, job, fund)), min(most, _SLICE_SECONDS))
        if seconds is None or share < seconds:
            seconds, limit = share, fund.text
    longest = seconds
    for fund in budgets_of(session, job):
        if not (rate := fund.rate(job) * len(jobs) / _HOUR):
            continue
        held = fund.reserved(session)
        most = (fund.amount - fund.spent(session) - held) / rate
        least = longest or (_SLICE_SECONDS if held else _LEAST_SECONDS)  # of what is held some is free later
        if most < least:
            return Admission(lacking=fund, needed=least * rate)
        if longest is None and (seconds is None or most < seconds):
            seconds, limit = most, fund.text
    return Admission(seconds, limit)


def _waiting(session: Session, job: Job, fund: Fund) -> int:
    """Return how many jobs of a set wait that may run at once with those that run."""
    if job.cost_set is None or job.nodes is not None:
        return 0
    counts = select(func.count(), func.count(case((Job.state.in_(OWNED), 1)))).where(fund.jobs, IS_ACTIVE)
    unended, running = session.execute(counts).one()
    return max(0, min(unended, unended if job.array_limit is None else job.array_limit) - running)


def extend(session: Session, job: Job) -> Job | None:
    """Let a job that has used up its share run on with what others have left over; None: nothing is left."""
    turns.take_turn(session, CLAIMS)
    ran = amounts.duration(session.get_bind().dialect.name)
    held = Job.id == job.id, Job.lease == job.lease, Job.state == JobState.RUNNING, Job.nodes.is_(None)
    rows = session.execute(select(Job, ran).where(*held)).all()
    for row, elapsed in rows:
        seconds, limit = float(row.spec.time_limit or MAX_TIME_LIMIT), None
        for fund in [*ceilings_of(row), *budgets_of(session, row)]:
            if not (rate := fund.rate(row) / _HOUR):
                continue
            most = (fund.amount - fund.spent(session) - fund.reserved(session, without=row.id)) / rate
            others = 0 if fund.is_budget else _waiting(session, row, fund)
            share = max(most / (1 + others), min(most, _SLICE_SECONDS))
            if elapsed + share < seconds:
                seconds, limit = elapsed + share, fund.text
        if seconds - elapsed >= _LEAST_SECONDS:
            row.run_seconds, row.run_limit = seconds, limit
            session.flush()
            return row
    return None
