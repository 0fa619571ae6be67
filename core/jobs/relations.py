"""Rows around jobs, which are shown with them: read in one query for all."""

from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

from sqlalchemy import Select, bindparam, select
from sqlalchemy.orm import Session

from core.db.light_rows import LightRows
from core.db.models.credentials import ApiKey
from core.db.models.jobs import Attempt, Job, Project

_ATTEMPT_ROWS = LightRows(Attempt)


class JobRelations(NamedTuple):
    """The rows around a job's."""

    project: str
    owner: str | None  # name of the key that submitted it; None: the key does not exist any more
    attempt: Attempt | None  # its current attempt; None: there was none yet


def relations_of(session: Session, jobs: Sequence[Job]) -> dict[str, JobRelations]:
    """Return the rows around these jobs' by job id."""
    rows = session.execute(_relations(), {"ids": [job.id for job in jobs]})
    return {
        job_id: JobRelations(project, owner, _ATTEMPT_ROWS.make(attempt) if attempt[0] is not None else None)
        for job_id, project, owner, *attempt in rows
    }


@cache
def _relations() -> Select[*tuple[Any, ...]]:
    current = (Attempt.job_id == Job.id) & (Attempt.attempt == Job.attempt)
    return (
        select(Job.id, Project.name, ApiKey.name, *_ATTEMPT_ROWS.columns)
        .select_from(Job)
        .join(Project, Project.id == Job.project_id)
        .outerjoin(ApiKey, ApiKey.id == Job.submitted_by)
        .outerjoin(Attempt, current)
        .where(Job.id.in_(bindparam("ids", expanding=True)))
    )
