"""Budgets of projects, users and keys: setting them, what is left, and who waits for them."""

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import delete, func, literal, select
from sqlalchemy.orm import Session

from core.db.database import UtcDateTime, now
from core.db.models.budgets import Budget
from core.db.models.credentials import ApiKey
from core.db.models.jobs import Job
from core.errors import BudgetSpent, SpecInvalid
from core.formatting import format_moment
from core.jobs.costs import amounts, limits
from core.jobs.costs.limits import Fund, format_amount
from core.jobs.spec.image_options import quoted
from core.jobs.spec.job_spec import LEAST_CEILING, MAX_CEILING
from core.security.actor import record_change

_BUDGET = re.compile(r"\$?(\d{1,10}(?:\.\d{1,6})?)(usd|gpu_hours)?/(day|month|total)\Z", re.ASCII)
MAX_BUDGETS = 6  # one of each unit and period


class BudgetState(NamedTuple):
    amount: float
    unit: str
    period: str
    spent: float  # in the current period
    reserved: float  # what running jobs can still cost
    left: float
    resets_at: datetime | None  # end of the period; None: it has none


def put(session: Session, kind: str, subject: str, name: str, texts: Sequence[str]) -> None:
    """Replace the budgets of a project, a user or a key by `AMOUNT/PERIOD` or `AMOUNTgpu_hours/PERIOD`."""
    rows: dict[tuple[str, str], Budget] = {}
    for text in texts:
        match = _BUDGET.match(text.strip())
        if match is None or not LEAST_CEILING <= float(match[1]) <= MAX_CEILING:
            raise SpecInvalid(
                f"{quoted(text)} is not a budget. Write an amount above 0 and day, month or total: 100/month for US "
                "dollars, 8gpu_hours/day for GPU hours.",
                field="budgets",
            )
        unit, period = match[2] or "usd", match[3]
        if (unit, period) in rows:
            raise SpecInvalid(f"Two budgets of {unit} for the same period. Keep one.", field="budgets")
        of_subject = {"subject": subject, "kind": kind, "name": name}
        rows[unit, period] = Budget(**of_subject, unit=unit, period=period, amount=float(match[1]))
    session.execute(delete(Budget).where(Budget.subject == subject, Budget.kind == kind))
    session.add_all(rows.values())
    session.flush()
    record_change(session, "budget_changed", f"{kind} {name}: {', '.join(texts) or 'none'}")


def states(session: Session, kind: str, subjects: Iterable[str]) -> dict[str, list[BudgetState]]:
    """Return the budgets of subjects of one kind, by id; those that have none are left out."""
    states_by_subject: dict[str, list[BudgetState]] = {}
    at = session.scalars(select(now())).one()
    of_subjects = Budget.kind == kind, Budget.subject.in_(list(subjects))
    for row in session.scalars(select(Budget).where(*of_subjects).order_by(Budget.unit.desc(), Budget.period)):
        fund = limits.fund_of(row, at)
        spent, reserved = fund.spent(session), fund.reserved(session)
        left = max(0.0, row.amount - spent - reserved)
        resets_at = limits.resets_at(row.period, fund.since)
        state = BudgetState(row.amount, row.unit, row.period, spent, reserved, left, resets_at)
        states_by_subject.setdefault(row.subject, []).append(state)
    return states_by_subject


def check(session: Session, job: Job, count: int) -> None:
    """Refuse a new job that its budgets can never pay. `count`: how many such jobs start together.

    Raises `BudgetSpent`: it can cost more than is ever left, or a budget without a period is spent.
    """
    longest = limits.longest_seconds(job)
    for fund in limits.budgets_of(session, job):
        needed = (longest or 1.0) * fund.rate(job) * count / 3600
        if not needed:
            continue
        spent = fund.spent(session)
        if needed <= (fund.amount if fund.resets_at is not None else fund.amount - spent):
            continue
        left = format_amount(max(0.0, fund.amount - spent), fund.unit)
        if longest is None:
            what = "It is spent"
        else:
            what = (
                f"The job can cost {format_amount(needed, fund.unit)}; set a shorter --timeLimit or a lower --maxCost"
            )
        resets = "it does not reset" if fund.resets_at is None else f"it resets at {format_moment(fund.resets_at)}"
        raise BudgetSpent(f"{what}: {fund.text}, has {left} left and {resets}.", field="project")


def explain_waits(session: Session, jobs: Iterable[Job]) -> dict[str, str]:
    """Return why jobs wait for a ceiling or a budget, by id; jobs for which enough is left are left out."""
    has_budgets = session.scalar(select(Budget.subject).limit(1)) is not None
    alike: defaultdict[tuple[Any, ...], list[Job]] = defaultdict(list)
    for job in jobs:
        # Of its own ceiling a job has spent nothing before its first attempt.
        shared = limits.set_of(job) if limits.ceilings_of(job) and (job.cost_set or job.attempt) else None
        if has_budgets or shared is not None:
            payers, options = (job.project_id, job.user_id, job.submitted_by), job.spec
            caps = options.time_limit, options.max_cost, options.max_gpu_hours
            alike[*payers, shared, *caps, job.price_per_hour, job.gpu_count].append(job)
    why: dict[str, str] = {}
    for same in alike.values():
        fund, needed = limits.admit(session, same[:1])[2:4]
        if fund is not None:
            why |= dict.fromkeys([job.id for job in same], _describe(session, fund, needed))
    return why


def _describe(session: Session, fund: Fund, needed: float) -> str:
    dialect = session.get_bind().dialect.name
    total = func.sum(amounts.amount(fund.unit, dialect, literal(fund.since, UtcDateTime()))).label("total")
    recent = fund.jobs, (Job.finished_at >= fund.since) | (Job.finished_at.is_(None) & (Job.attempt > 0))
    by_key = select(ApiKey.name, total).join(ApiKey, ApiKey.id == Job.submitted_by).where(*recent)
    most = session.execute(by_key.group_by(ApiKey.id, ApiKey.name).order_by(total.desc()).limit(1)).first()
    spent, reserved = fund.spent(session), fund.reserved(session)
    by = f", most by key {most[0]}" if most is not None and most[1] and fund.is_budget else ""
    needs = f", and the job needs {format_amount(needed, fund.unit)}" if needed else ""
    ends = ["when running jobs end"] if reserved else []
    ends += [] if fund.resets_at is None else [f"at {format_moment(fund.resets_at)}"]
    frees = f" Some is free {' or '.join(ends)}." if ends else ""
    return (
        f"of {fund.text}, {format_amount(spent, fund.unit)} is spent{by} and {format_amount(reserved, fund.unit)} "
        f"is reserved by running jobs{needs}.{frees}"
    )
