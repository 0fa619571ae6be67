"""Costs of the last days by project, user, key, machine type or day; deleted jobs count."""

from datetime import datetime, timedelta
from typing import Any, Literal, NamedTuple

from sqlalchemy import ColumnElement, case, func, literal, select, true, union_all
from sqlalchemy.orm import Session

from core.db.database import UtcDateTime, now
from core.db.models.credentials import ApiKey, User
from core.db.models.jobs import IS_ATTEMPTED, Attempt, Job, Project
from core.jobs.costs import amounts

By = Literal["project", "user", "key", "machine", "day"]
MAX_DAYS = 366
_NO_USER = "keys without a user"


class CostRow(NamedTuple):
    name: str
    cost: float  # US dollars
    gpu_hours: float
    jobs: int  # that ran in this time


def report(session: Session, by: By, days: int) -> list[CostRow]:
    """Return the costs since a midnight, of today and the days before it; the dearest first, or the days in order."""
    at = session.scalars(select(now())).one()
    midnight = at.replace(hour=0, minute=0, second=0, microsecond=0)
    if by != "day":
        return _grouped(session, by, midnight - timedelta(days=days - 1), at)
    rows = list[CostRow]()
    for before in reversed(range(days)):
        day = midnight - timedelta(days=before)
        [total] = _sums(session, "", day, at, day + timedelta(days=1)) or [CostRow("", 0.0, 0.0, 0)]
        rows.append(total._replace(name=f"{day:%Y-%m-%d}"))
    return rows


def _grouped(session: Session, by: By, since: datetime, at: datetime) -> list[CostRow]:
    names: dict[str, Any] = {
        "project": select(Project.name).where(Project.id == Job.project_id).scalar_subquery(),
        "user": func.coalesce(select(User.email).where(User.id == Job.user_id).scalar_subquery(), _NO_USER),
        "key": func.coalesce(
            select(ApiKey.name).where(ApiKey.id == Job.submitted_by).scalar_subquery(), Job.submitted_by
        ),
        "machine": Job.machine_type,
    }
    return sorted(_sums(session, names[by], since, at), key=lambda row: (-row.cost, -row.gpu_hours, row.name))


def _sums(
    session: Session,
    name: Any,  # noqa: ANN401 - an expression
    since: datetime,
    at: datetime,
    until: datetime | None = None,
) -> list[CostRow]:
    """Return sums from `since` to `until` or `at`, the present."""
    dialect = session.get_bind().dialect.name
    start, stop, present = (literal(time, UtcDateTime()) for time in (since, until, at))
    named = literal("") if isinstance(name, str) else name
    taken = [amount(dialect, since=start, at=present) for amount in (amounts.cost, amounts.gpu_hours)]
    some = list[ColumnElement[bool]]()
    counts: ColumnElement[bool] = true()
    if until is not None and until <= at:  # what was taken since then is left out, and jobs that took nothing before
        later = [amount(dialect, since=stop, at=present) for amount in (amounts.cost, amounts.gpu_hours)]
        taken = [amount - since_then for amount, since_then in zip(taken, later, strict=True)]
        some = [Job.created_at < until]
        counts = select(Attempt).where(Attempt.job_id == Job.id, Attempt.started_at < until).exists()
    ran = select(named.label("name"), taken[0].label("cost"), taken[1].label("gpu_hours"), counts.label("counts"))
    ended = Job.attempt > 0, Job.finished_at >= since
    jobs = union_all(ran.where(*ended, *some), ran.where(IS_ATTEMPTED, *some)).subquery()  # each by an index of its own
    sums = func.sum(jobs.c.cost), func.sum(jobs.c.gpu_hours), func.count(case((jobs.c.counts, 1)))
    query = select(jobs.c.name, *sums).group_by(jobs.c.name)
    return [CostRow(text.lstrip("\x7f"), *values) for text, *values in session.execute(query)]
