"""Numbers of arrays and of the jobs of comparisons, which are those of all their members."""

import sys
from collections.abc import Collection
from datetime import datetime
from typing import NamedTuple

from sqlalchemy import ColumnElement, and_, case, func, literal_column, select, tuple_
from sqlalchemy.orm import Session

from core.db.models.jobs import Attempt, Job
from core.db.models.metrics import LastMetric
from core.jobs import queries
from core.jobs.costs.amounts import cost, duration, gpu_hours
from core.jobs.states import JobState

# Without parameters, which PostgreSQL would tell apart in the columns and in GROUP BY.
_IN_COMPARISON = Job.cost_set.like(literal_column(f"'{queries.COMPARISON}%'"))
_OF = func.coalesce(Job.array_id, case((_IN_COMPARISON, Job.cost_set)))
"""The id of a job's array, or of the comparison that submitted it."""


class MembersInState(NamedTuple):
    """Members of an array that are in the same state, have an exit code or none, and are simulated or not."""

    array_id: str | None
    state: JobState
    exit_code: int | None  # one of them
    simulated: bool
    members: int
    seconds: float | None  # for which they have run; None: none has started
    dollars: float | None
    gpu_hours: float | None
    finished_at: datetime | None  # when the last of them ended
    stopping: int  # that were asked to stop


def count_members(session: Session, jobs: ColumnElement[bool]) -> list[MembersInState]:
    """Return the numbers of the jobs that meet a condition, also of those of no array."""
    dialect = session.get_bind().dialect.name
    amounts = func.sum(duration(dialect)), func.sum(cost(dialect)), func.sum(gpu_hours(dialect))
    totals = *amounts, func.max(Job.finished_at), func.count(Job.stop_requested_at)
    counted = select(_OF, Job.state, func.max(Job.exit_code), Job.simulated, func.count(), *totals)
    grouped = counted.where(jobs, Job.deleted_at.is_(None))
    rows = session.execute(grouped.group_by(_OF, Job.state, Job.exit_code.is_not(None), Job.simulated))
    return [MembersInState._make(row) for row in rows]


def diverged_members(session: Session, arrays: Collection[str]) -> dict[str | None, str]:
    """Return of each array how many members have diverged, and the evidence of one; left out: none has."""
    members = select(_OF, func.count(), func.min(Attempt.diverged)).join(
        Attempt, and_(Attempt.job_id == Job.id, Attempt.attempt == Job.attempt)
    )
    diverged = members.where(queries.member_condition(arrays), Job.deleted_at.is_(None), Attempt.diverged.is_not(None))
    return {row[0]: f"{row[1]:,} of them: {row[2]}" for row in session.execute(diverged.group_by(_OF))}


def last_extremes(session: Session, arrays: Collection[str]) -> dict[str, dict[str, tuple[float, float]]]:
    """Return the lowest and the highest finite last value of each metric among the members of each array."""
    if not arrays:
        return {}
    values: dict[str, dict[str, tuple[float, float]]] = {array_id: {} for array_id in arrays}
    ends = func.min(LastMetric.value), func.max(LastMetric.value)
    measured = select(_OF, LastMetric.name, *ends).join(LastMetric, LastMetric.job_id == Job.id)
    members = queries.member_condition(arrays), Job.deleted_at.is_(None)
    wanted = measured.where(*members, LastMetric.value.between(-sys.float_info.max, sys.float_info.max))
    for array_id, name, low, high in session.execute(wanted.group_by(_OF, LastMetric.name)):
        values[str(array_id)][name] = float(low or 0), float(high or 0)
    return values


def members_with(session: Session, metric: str, values: dict[str, float]) -> dict[str | None, str]:
    """Return a member of each array whose last value of a metric is this one."""
    wanted = select(_OF, func.min(Job.id)).join(LastMetric, LastMetric.job_id == Job.id)
    has_value = queries.member_condition(values), tuple_(_OF, LastMetric.value).in_(list(values.items()))
    rows = wanted.where(LastMetric.name == metric, *has_value, Job.deleted_at.is_(None)).group_by(_OF)
    return {row[0]: row[1] for row in session.execute(rows)}
