"""Attempt numbers after a restore: jobs that have run since their database was backed up must not reuse them."""

from sqlalchemy import select, update

from core.db.models.jobs import IS_ACTIVE, Job
from core.storage.stores import Stores


def raise_attempts(stores: Stores) -> int:
    """Raise the attempt of jobs that have not ended to the last one with a log or artifacts; returns their number.

    Their next claim takes the number after it: both stores refuse or mix up a second run of an attempt. The attempts
    that the database does not know do not count against `max_attempts`. No other process of the service may run.

    Raises:
        StoreUnavailable: The database or the bucket does not answer.
    """
    with stores.database.read() as session:
        active = session.execute(select(Job.id, Job.attempt).where(IS_ACTIVE)).all()
    stored = {
        job_id: max(stores.logs.reader(job_id).last_attempt, stores.artifacts.last_attempt(job_id))
        for job_id, _ in active
    }
    behind = [(job_id, attempt) for job_id, attempt in active if attempt < stored[job_id]]
    with stores.database.write() as session:
        for job_id, attempt in behind:
            faults = Job.machine_faults + stored[job_id] - attempt
            raised = update(Job).where(Job.id == job_id).values(attempt=stored[job_id], machine_faults=faults)
            session.execute(raised)
    return len(behind)
