"""Rows around jobs, which are shown with them: read in one query for all."""

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

from sqlalchemy import select
from sqlalchemy.orm import Session

from core.db.light_rows import LightRows
from core.db.models.credentials import ApiKey
from core.db.models.jobs import Attempt, Job, Project
from core.db.prepared import Prepared, is_any_of

_ATTEMPT_ROWS = LightRows(Attempt)


class JobRelations(NamedTuple):
    """The rows around a job's.

    Attributes:
        owner: Name of the key that submitted it; None: the key does not exist any more.
        attempt: Its current attempt; None: there was none yet.
    """

    project: str
    owner: str | None
    attempt: Attempt | None


def relations_of(session: Session, jobs: Sequence[Job]) -> dict[str, JobRelations]:
    """Return the rows around these jobs' by job id."""
    rows = _relations().rows(session, {"ids": [job.id for job in jobs]})
    return {
        job_id: JobRelations(project, owner, _ATTEMPT_ROWS.make(attempt) if attempt[0] is not None else None)
        for job_id, project, owner, *attempt in rows
    }


@cache
def _relations() -> Prepared:
    current = (Attempt.job_id == Job.id) & (Attempt.attempt == Job.attempt)
    query = (
        select(Job.id, Project.name, ApiKey.name, *_ATTEMPT_ROWS.columns)
        .select_from(Job)
        .join(Project, Project.id == Job.project_id)
        .outerjoin(ApiKey, ApiKey.id == Job.submitted_by)
        .outerjoin(Attempt, current)
    )
    return Prepared(query.where(is_any_of(Job.id)))
