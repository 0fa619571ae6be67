"""Money spent by project, user, key, machine type or day; deleted jobs count, simulated machines apart.

Every sum that a page, the API or the client calls spent is one of these.
"""

from collections import defaultdict
from collections.abc import Iterable
from datetime import timedelta
from functools import lru_cache
from typing import Any, Literal, NamedTuple

from sqlalchemy import Select, String, bindparam, case, func, select, union_all
from sqlalchemy.orm import Session

from core.db.database import UtcDateTime, now
from core.db.models.credentials import ApiKey, User
from core.db.models.jobs import IS_ATTEMPTED, Attempt, Job, Project
from core.formatting import format_amounts
from core.jobs import projects
from core.jobs.costs import amounts

By = Literal["project", "user", "key", "machine", "day"]
MAX_DAYS = 366
_NO_USER = "keys without a user"
_NOW = select(now())


class CostRow(NamedTuple):
    name: str
    cost: float = 0.0  # US dollars
    simulated_cost: float = 0.0  # US dollars that simulated machines would have cost
    gpu_hours: float = 0.0
    jobs: int = 0  # that ran in this time


def report(session: Session, by: By, days: int | None, kind: str = "all", subject: str = "") -> list[CostRow]:
    """Return what was spent since a midnight, today and the days before; the dearest first, or the days in order.

    `days`: None for all time. `kind`, `subject`: of whose jobs, as `amounts.condition` has it.
    """
    at = session.scalars(_NOW).one()
    midnight = at.replace(hour=0, minute=0, second=0, microsecond=0)
    since = amounts.START if days is None else midnight - timedelta(days=days - 1)
    starts = [since + timedelta(days=day) for day in range((midnight - since).days + 1)] if by == "day" else [since]
    periods = [*zip(starts, [*starts[1:], at], strict=True)]
    values = {name: time for at, period in enumerate(periods) for name, time in zip(_names(at), period, strict=True)}
    statement = _statement(session.get_bind().dialect.name, by, len(periods), kind)
    rows = [CostRow(*row) for row in session.execute(statement, values | {"subject": subject})]
    if by != "day":
        named = (row._replace(name=row.name.lstrip("\x7f")) for row in rows)
        return sorted(named, key=lambda row: (-row.cost, -row.simulated_cost, -row.gpu_hours, row.name))
    by_day = {f"{row.name:%Y-%m-%d}": row for row in rows}
    return [by_day.get(day, CostRow(day))._replace(name=day) for day in (f"{start:%Y-%m-%d}" for start in starts)]


def report_of_project(session: Session, by: By, days: int, project: str | None) -> list[CostRow]:
    """Return the report of the project of this name, or of all. Raises `ProjectNotFound`."""
    if project:
        return report(session, by, days, "project", projects.get_id(session, project, "project"))
    return report(session, by, days)


def format_spent(rows: Iterable[CostRow], *, by_type: bool = False) -> list[str]:
    """Format a sum of rows. `by_type`: they are of machine types, which GPU hours without a price are told by."""
    cost, simulated, free = 0.0, 0.0, defaultdict[str, float](float)
    for row in rows:
        cost += row.cost
        simulated += row.simulated_cost
        free[row.name if by_type else ""] += 0.0 if row.cost or row.simulated_cost else row.gpu_hours
    return format_amounts(cost, simulated, free)


def _names(number: int) -> tuple[str, str]:
    """Return the names of the parameters of a period, its start and its end."""
    return f"start_{number}", f"end_{number}"


@lru_cache(32)
def _statement(dialect: str, by: By, periods: int, kind: str) -> Select[*tuple[Any, ...]]:
    times = [[bindparam(name, type_=UtcDateTime()) for name in _names(number)] for number in range(periods)]
    period = union_all(*(select(start.label("start"), end.label("end")) for start, end in times)).subquery()
    began = select(Attempt).where(Attempt.job_id == Job.id, Attempt.started_at < period.c.end)
    ran = (
        select(
            _name(by, period.c.start).label("name"),
            amounts.cost(dialect, since=period.c.start, at=period.c.end).label("cost"),
            amounts.gpu_hours(dialect, since=period.c.start, at=period.c.end).label("gpu_hours"),
            began.correlate_except(Attempt).exists().label("counts"),
            Job.simulated.label("simulated"),
        )
        .join_from(Job, period, Job.created_at < period.c.end)
        .where(amounts.condition(kind, bindparam("subject", type_=String)))
    )
    ended = Job.attempt > 0, Job.finished_at >= period.c.start
    jobs = union_all(ran.where(*ended), ran.where(IS_ATTEMPTED)).subquery()  # each by an index of its own
    real, simulated = (case((jobs.c.simulated.is_(of), jobs.c.cost), else_=0.0) for of in (False, True))
    sums = func.sum(real), func.sum(simulated), func.sum(jobs.c.gpu_hours), func.count(case((jobs.c.counts, 1)))
    return select(jobs.c.name, *sums).group_by(jobs.c.name)


def _name(by: By, day: Any) -> Any:  # noqa: ANN401 - expressions
    """Return what the rows are named by."""
    of_key = select(ApiKey.name).where(ApiKey.id == Job.submitted_by).scalar_subquery()
    names: dict[By, Any] = {
        "project": select(Project.name).where(Project.id == Job.project_id).scalar_subquery(),
        "user": func.coalesce(select(User.email).where(User.id == Job.user_id).scalar_subquery(), _NO_USER),
        "key": func.coalesce(of_key, Job.submitted_by),
        "machine": Job.machine_type,
        "day": day,
    }
    return names[by]
