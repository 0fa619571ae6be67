"""Numbers of arrays, which are those of all their members."""

from collections.abc import Collection
from datetime import datetime
from typing import NamedTuple

from sqlalchemy import ColumnElement, func, select, tuple_
from sqlalchemy.orm import Session

from core.db.models.jobs import Job
from core.db.models.metrics import LastMetric
from core.jobs.costs.amounts import cost, duration, gpu_hours
from core.jobs.states import JobState


class MembersInState(NamedTuple):
    """Members of an array that are in the same state, and have an exit code or have none."""

    array_id: str | None
    state: JobState
    exit_code: int | None  # one of them
    members: int
    seconds: float | None  # for which they have run; None: none has started
    dollars: float | None
    gpu_hours: float | None
    finished_at: datetime | None  # when the last of them ended


def count_members(session: Session, jobs: ColumnElement[bool]) -> list[MembersInState]:
    """Return the numbers of the jobs that meet a condition, also of those of no array."""
    dialect = session.get_bind().dialect.name
    amounts = func.sum(duration(dialect)), func.sum(cost(dialect)), func.sum(gpu_hours(dialect))
    totals = *amounts, func.max(Job.finished_at)
    counted = select(Job.array_id, Job.state, func.max(Job.exit_code), func.count(), *totals)
    grouped = counted.where(jobs, Job.deleted_at.is_(None))
    rows = session.execute(grouped.group_by(Job.array_id, Job.state, Job.exit_code.is_not(None)))
    return [MembersInState._make(row) for row in rows]


def last_extremes(session: Session, arrays: Collection[str]) -> dict[str, dict[str, tuple[float, float]]]:
    """Return the lowest and the highest last value of each metric among the members of each array."""
    values: dict[str, dict[str, tuple[float, float]]] = {array_id: {} for array_id in arrays}
    ends = func.min(LastMetric.value), func.max(LastMetric.value)
    measured = select(Job.array_id, LastMetric.name, *ends).join(LastMetric, LastMetric.job_id == Job.id)
    wanted = measured.where(Job.array_id.in_(arrays), Job.deleted_at.is_(None), LastMetric.value.is_not(None))
    for array_id, name, low, high in session.execute(wanted.group_by(Job.array_id, LastMetric.name)):
        values[str(array_id)][name] = float(low or 0), float(high or 0)
    return values


def members_with(session: Session, metric: str, values: dict[str, float]) -> dict[str | None, str]:
    """Return a member of each array whose last value of a metric is this one."""
    wanted = select(Job.array_id, func.min(Job.id)).join(LastMetric, LastMetric.job_id == Job.id)
    has_value = tuple_(Job.array_id, LastMetric.value).in_(list(values.items()))
    rows = wanted.where(LastMetric.name == metric, has_value, Job.deleted_at.is_(None)).group_by(Job.array_id)
    return {row[0]: row[1] for row in session.execute(rows)}
