"""Numbers of arrays, which are those of all their members."""

from collections.abc import Collection
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import Select, SQLColumnExpression, func, null, select
from sqlalchemy.orm import Session

from core.db.models.jobs import Job
from core.jobs import queries
from core.jobs.costs.amounts import cost, duration, gpu_hours
from core.jobs.queries import JobFilter
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


def count_members(session: Session, array_ids: Collection[str]) -> list[MembersInState]:
    of_arrays = _counted(session, Job.array_id).where(Job.array_id.in_(array_ids), Job.deleted_at.is_(None))
    return [MembersInState._make(row) for row in session.execute(of_arrays.group_by(Job.array_id))]


def count_matching(session: Session, wanted: JobFilter, *, most: int) -> list[MembersInState]:
    """Return the numbers of the jobs that match, of at most so many: the newest."""
    newest = queries.matching(session, wanted).with_only_columns(Job.seq).order_by(Job.seq.desc()).limit(most)
    counted = _counted(session, null()).where(Job.seq.in_(newest))
    return [MembersInState._make(row) for row in session.execute(counted)]


def _counted(session: Session, array_id: SQLColumnExpression[Any]) -> Select[*tuple[Any, ...]]:
    dialect = session.get_bind().dialect.name
    amounts = func.sum(duration(dialect)), func.sum(cost(dialect)), func.sum(gpu_hours(dialect))
    totals = *amounts, func.max(Job.finished_at)
    counted = select(array_id, Job.state, func.max(Job.exit_code), func.count(), *totals)
    return counted.group_by(Job.state, Job.exit_code.is_not(None))
