"""Insertion of validated jobs: of one, or of many in one transaction, each of which succeeds or fails by itself."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from sqlalchemy import delete
from sqlalchemy.exc import DataError
from sqlalchemy.orm import Session

from core.db.database import on_commit
from core.db.models.jobs import Job, Project
from core.errors import GradientError, IdempotencyMismatch, LimitReached, ProjectNotFound, SpecInvalid, StorageFull
from core.jobs import projects, queries, submission
from core.jobs.scheduling import dependencies
from core.jobs.submission import NewJob
from core.jobs.tracking import job_notes
from core.system.failpoints import failpoint
from service.app_state import AppState
from service.submission.stages import InsertedJob, PreparedJob
from service.submission.validation import DEFAULT_PROJECT


def insert(session: Session, app_state: AppState, prepared: PreparedJob) -> InsertedJob:
    """Insert a job, or return the one that was created before under its Idempotency-Key."""
    [outcome] = _Insertion(session, app_state).run([prepared])
    if not isinstance(outcome, InsertedJob):
        raise outcome
    return outcome


def insert_array(app_state: AppState, prepared: PreparedJob) -> InsertedJob:
    """Insert a job for each member of an array, all or none; return the first, which has the Idempotency-Key."""
    spec = prepared.valid.spec
    names = [spec.name and f"{spec.name}[{member.array_index}]" for member, _ in prepared.members]
    jobs = [
        replace(
            prepared,
            array=member,
            members=(),
            parent_id=parent_id or prepared.parent_id,
            valid=replace(prepared.valid, spec=replace(spec, name=name)),
        )
        for (member, parent_id), name in zip(prepared.members, names, strict=True)
    ]
    unkeyed = replace(prepared.origin, idempotency_key=None)
    with app_state.database.write() as session:
        first = insert(session, app_state, jobs[0])
        if first.created and len(jobs) > 1:
            app_state.limits.submissions.acquire(prepared.origin.key_id, len(jobs) - 1)
            for outcome in _Insertion(session, app_state).run([replace(each, origin=unkeyed) for each in jobs[1:]]):
                if not isinstance(outcome, InsertedJob):
                    raise outcome
    return first


def insert_each(
    session: Session, app_state: AppState, jobs: Sequence[PreparedJob]
) -> Sequence[InsertedJob | GradientError | DataError]:
    """Insert jobs, in their order; return for each the job, or the error for which `insert` would raise."""
    try:
        with session.connection().begin_nested():
            return _Insertion(session, app_state).run(jobs)
    except (GradientError, DataError):
        # Of one of them, which the database or the vault refused together with the others.
        return [_insert_alone(session, app_state, each) for each in jobs]


def insert_together(
    app_state: AppState, jobs: Sequence[PreparedJob]
) -> Sequence[InsertedJob | GradientError | DataError]:
    """Insert the jobs of concurrent submissions in one transaction; return for each the job or its error."""
    with app_state.database.write() as session:
        if len(jobs) == 1:
            return [insert(session, app_state, jobs[0])]
        if any(each.save_logins is not None for each in jobs):  # one of them may be refused: for that, a savepoint
            return insert_each(session, app_state, jobs)
        return _Insertion(session, app_state).run(jobs)


def _insert_alone(
    session: Session, app_state: AppState, prepared: PreparedJob
) -> InsertedJob | GradientError | DataError:
    try:
        with session.begin_nested():
            return insert(session, app_state, prepared)
    except (GradientError, DataError) as error:
        return error


class _Insertion:
    """The insertion of jobs in one transaction, with as few statements as possible."""

    def __init__(self, session: Session, app_state: AppState) -> None:
        self._session = session
        self._app_state = app_state
        self._queue = app_state.limits.queue.admission(session)
        self._projects: dict[tuple[str | None, str], Project | GradientError] = {}
        self._created_projects: set[str] = set()
        self._checked_dependencies: set[tuple[str, ...]] = set()
        self._over_quota: dict[str, StorageFull | None] = {}

    def run(self, jobs: Sequence[PreparedJob]) -> list[InsertedJob | GradientError]:
        outcomes: dict[int, InsertedJob | GradientError] = {}
        new_jobs: dict[int, NewJob] = {}
        for place, prepared in enumerate(jobs):
            project = self._project(
                prepared.project_id, prepared.project_name or DEFAULT_PROJECT, prepared.origin.key_id
            )
            if isinstance(project, GradientError):
                outcomes[place] = project
            else:
                new_jobs[place] = _new_job(self._app_state, prepared, project)
        submitted = submission.find_submitted(self._session, list(new_jobs.values()))
        fresh = self._admit(new_jobs, submitted, outcomes)
        for place, job in self._insert(jobs, fresh):
            outcomes[place] = _inserted(jobs[place], fresh[place], job, created=True)
        used = {new_job.project.id for place, new_job in fresh.items() if place in outcomes}
        if unused := self._created_projects - used:
            self._session.execute(delete(Project).where(Project.id.in_(unused)))
        repeated = {place: new_job for place, new_job in new_jobs.items() if place not in outcomes}
        if repeated:
            submitted = submission.find_submitted(self._session, list(repeated.values()))
        for place, new_job in repeated.items():
            outcomes[place] = _repeated(jobs[place], new_job, submitted)
        on_commit(self._session, self._app_state.wake)
        failpoint("submit_before_commit")
        return [outcomes[place] for place in range(len(jobs))]

    def _project(self, project_id: str | None, name: str, key_id: str) -> Project | GradientError:
        which = (project_id, name)
        if which not in self._projects:
            try:
                if project_id is not None:
                    self._projects[which] = queries.project(self._session, project_id)
                elif (known := projects.find_for_submission(self._session, name)) is not None:
                    self._projects[which] = known
                else:
                    project, created = projects.get_or_create(self._session, name, key_id)
                    self._projects[which] = project
                    self._created_projects |= {project.id} if created else set()
            except ProjectNotFound as error:
                self._projects[which] = error
        return self._projects[which]

    def _admit(
        self,
        new_jobs: Mapping[int, NewJob],
        submitted: Mapping[tuple[str, str] | None, Job],
        outcomes: dict[int, InsertedJob | GradientError],
    ) -> dict[int, NewJob]:
        """Return the jobs to insert: no repeats, which add no job, and none over a limit."""
        fresh = {}
        taken = set(submitted)
        for place, new_job in new_jobs.items():
            idempotency = submission.idempotency_of(new_job)
            if idempotency in taken:
                continue
            try:
                wanted = (*new_job.spec.after, "", *new_job.spec.inputs)
                if wanted not in self._checked_dependencies:  # those of all members of an array are the same
                    dependencies.check(self._session, new_job.spec)
                    self._checked_dependencies.add(wanted)
                self._check_quota(new_job.project)
                self._queue.admit(new_job.submitted_by, new_job.project.id)
            except (SpecInvalid, StorageFull, LimitReached) as error:
                outcomes[place] = error
                continue
            if idempotency is not None:
                taken.add(idempotency)
            fresh[place] = new_job
        return fresh

    def _check_quota(self, project: Project) -> None:
        if project.id not in self._over_quota:
            try:
                projects.check_quota(self._session, project, self._app_state.settings.disk.project_mb)
                self._over_quota[project.id] = None
            except StorageFull as error:
                self._over_quota[project.id] = error
        refusal = self._over_quota[project.id]
        if refusal is not None:
            raise refusal

    def _insert(self, jobs: Sequence[PreparedJob], fresh: Mapping[int, NewJob]) -> Iterator[tuple[int, Job]]:
        """Insert jobs; leave out one whose Idempotency-Key another transaction has committed meanwhile."""
        inserted = submission.insert_queued(self._session, list(fresh.values())) if fresh else []
        for place, job in zip(fresh, inserted, strict=True):
            if job is None:
                continue
            for text in jobs[place].notes:
                job_notes.add(self._session, job, text)
            if (save_logins := jobs[place].save_logins) is not None:
                save_logins(self._session, job)
            yield place, job


def _inserted(prepared: PreparedJob, new_job: NewJob, job: Job, *, created: bool) -> InsertedJob:
    return InsertedJob(job, new_job.project.name, created, [*prepared.valid.answer_notes, *prepared.notes])


def _repeated(
    prepared: PreparedJob, new_job: NewJob, submitted: Mapping[tuple[str, str] | None, Job]
) -> InsertedJob | GradientError:
    job = submitted[submission.idempotency_of(new_job)]
    try:
        return _inserted(prepared, new_job, submission.check_same_request(job, new_job), created=False)
    except IdempotencyMismatch as error:
        return error


def _new_job(app_state: AppState, prepared: PreparedJob, project: Project) -> NewJob:
    valid, origin = prepared.valid, prepared.origin
    return NewJob(
        spec=valid.spec,
        machine=valid.machine,
        backend=app_state.backend_for(valid.machine),
        project=project,
        submitted_by=origin.key_id,
        parent_id=prepared.parent_id,
        schedule_id=prepared.schedule_id,
        idempotency_key=origin.idempotency_key,
        request_sha256=prepared.digest,
        request_id=origin.request_id,
        trace_parent=prepared.trace_parent,
        image=valid.image.reference,
        array=prepared.array,
    )
