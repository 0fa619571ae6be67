"""Jobs that ended some days ago, with logs and artifacts; and a snapshot of a folder."""

from pathlib import Path

from sqlalchemy import update
from support.job_insertion import insert_job

from core.catalogue.machine_types import Catalogue
from core.db.database import Database, now
from core.db.models.jobs import Job, Project
from core.jobs import projects, queries
from core.jobs.spec.job_spec import JobSpec
from core.jobs.states import JobState
from core.jobs.submission import NewJob
from core.storage.retention import DAY_SECONDS


class RetentionJobs:
    """Creates jobs that ended in the past, over open stores.

    Args:
        kept: An object with `database`, `logs`, `artifacts` and `workspaces`.
        folder: Where outputs are prepared.
    """

    def __init__(self, stores, folder: Path) -> None:
        self.stores = stores
        self.database: Database = stores.database
        self._folder = folder
        self._machine = Catalogue.load().get("CPU")

    def create_job(self, days: float, *, project="default", state=JobState.SUCCEEDED, log=b"", files=(), **spec) -> Job:
        """A job of one attempt that ended so many days ago; one in another state has not ended."""
        with self.database.write() as session:
            owner, _ = projects.get_or_create(session, project)
            job, _ = insert_job(
                session,
                NewJob(
                    spec=JobSpec(machine_type="CPU", command="true", **spec),
                    machine=self._machine,
                    backend="process",
                    project_id=owner.id,
                    submitted_by="tester",
                ),
            )
            ended = state in {JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED}
            times = {"created_at": now(-days * DAY_SECONDS)}
            if ended:
                times |= {"finished_at": now(-days * DAY_SECONDS), "phase": None, "reason": "completed"}
            values = {"state": state, "attempt": 1, "exit_code": 0 if ended else None}
            session.execute(update(Job).where(Job.id == job.id).values(**values, **times))
        self.write_outputs(job, log, files)
        return self.read_row(job)

    def write_outputs(self, job: Job, log: bytes, files, attempt: int = 1) -> None:
        """Write the log and the artifacts of a job."""
        if log:
            with self.stores.logs.open_writer(job.id, 1) as writer:
                writer.append(log, 0)
        if files:
            source = self._folder / f"{job.id}-{attempt}"
            source.mkdir(parents=True)
            for name in files:
                (source / name).write_bytes(b"0123456789")
            manifest = self.stores.artifacts.close(job.id, attempt, source)
            with self.database.write() as session:
                session.execute(update(Job).where(Job.id == job.id).values(artifacts_state=manifest.state))

    def read_row(self, job: Job) -> Job:
        with self.database.read() as session:
            return queries.get_row(session, job.id)

    def retention_events(self, job: Job) -> list[tuple[str, str]]:
        """Reason and detail of what the record says of removals."""
        with self.database.read() as session:
            return [(one.reason, one.detail) for one in queries.events(session, job.id) if one.kind == "retention"]

    def set_retention(self, project="default", **columns) -> None:
        with self.database.write() as session:
            owner, _ = projects.get_or_create(session, project)
            session.execute(update(Project).where(Project.id == owner.id).values(**columns))


def read_tree(folder: Path) -> dict[str, bytes | None]:
    """Everything below a folder: files with their bytes, folders."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
    }
