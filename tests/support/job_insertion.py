"""Insertion of one job by the functions that the service uses for many."""

from sqlalchemy.orm import Session

from core.db.models.jobs import Job
from core.jobs import submission
from core.jobs.submission import NewJob


def insert_job(session: Session, new_job: NewJob) -> tuple[Job, bool]:
    """Insert a job; return it, and False if an earlier one has its Idempotency-Key and is returned instead."""
    [job] = submission.insert_queued(session, [new_job])
    if job is not None:
        return job, True
    earlier = submission.find_submitted(session, [new_job])[submission.idempotency_of(new_job)]
    return submission.check_same_request(earlier, new_job), False
