from collections.abc import Sequence

from sqlalchemy import select
from sqlalchemy.orm import Session

from core.db.models.jobs import Job
from core.errors import JobNotFound
from core.jobs import lifecycle


def change(session: Session, job_id: str, *, add: Sequence[str], remove: Sequence[str]) -> Job:
    """Add and remove tags of a job; of changes at the same time, none is lost."""
    job = session.scalar(select(Job).where(Job.id == job_id, Job.deleted_at.is_(None)).with_for_update())
    if job is None:
        raise JobNotFound(job_id)
    kept = [tag for tag in job.spec.tags if tag not in remove]
    return lifecycle.set_tags(session, job_id, list(dict.fromkeys([*kept, *add])))
