"""Numbers of arrays, which are those of all their members."""

from datetime import datetime
from typing import NamedTuple

from sqlalchemy import ColumnElement, func, select
from sqlalchemy.orm import Session

from core.db.models.jobs import Job
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
