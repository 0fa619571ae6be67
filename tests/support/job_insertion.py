"""Insertion of jobs by the functions that the service uses for many."""

from sqlalchemy.orm import Session

from core.catalogue.machine_types import Catalogue
from core.db.database import Database
from core.db.models.jobs import Job
from core.jobs import projects, submission
from core.jobs.spec.job_spec import JobSpec
from core.jobs.submission import NewJob


def insert_job(session: Session, new_job: NewJob) -> tuple[Job, bool]:
    """Insert a job; return it, and False if an earlier one has its Idempotency-Key and is returned instead."""
    if (earlier := submission.find_repeated(session, new_job)) is not None:
        return earlier, False
    [job] = submission.insert_queued(session, [new_job])
    return job, True


class JobSubmitter:
    """Makes jobs the way the service does."""

    def __init__(self, database: Database, catalogue: Catalogue) -> None:
        self._database = database
        self._catalogue = catalogue

    def __call__(
        self, command: str = "true", *, machine="CPU", project="default", key=None, digest=None, **spec
    ) -> Job:
        with self._database.write() as session:
            project, _ = projects.get_or_create(session, project)
            job, _ = insert_job(
                session,
                NewJob(
                    spec=JobSpec(machine_type=machine, command=command, **spec),
                    machine=self._catalogue.get(machine),
                    backend="process",
                    project_id=project.id,
                    submitted_by="tester",
                    idempotency_key=key,
                    request_sha256=digest,
                ),
            )
        return job
