"""Insertion of one job by the functions that the service uses for many."""

from sqlalchemy.orm import Session

from core.db.models.jobs import Job
from core.jobs import submission
from core.jobs.submission import NewJob


def insert_job(session: Session, new_job: NewJob) -> tuple[Job, bool]:
    """Insert a job; return it, and False if an earlier one has its Idempotency-Key and is returned instead."""
    if (earlier := submission.find_repeated(session, new_job)) is not None:
        return earlier, False
    [job] = submission.insert_queued(session, [new_job])
    return job, True
