"""Insertion of checked jobs: one, or all members of an array."""

from dataclasses import replace
from typing import Any

from sqlalchemy import delete
from sqlalchemy.orm import Session

from core.db.database import on_commit
from core.db.models.jobs import Job, Project
from core.jobs import projects, queries, submission
from core.jobs.costs import budgets
from core.jobs.scheduling import dependencies
from core.jobs.spec.arrays import is_sweep_id
from core.jobs.tracking import job_notes
from core.monitoring import tracing
from core.notifications import receivers
from core.security import key_rights, members
from core.security.actor import acting_address
from core.security.visibility import Viewer, seeing_as, seeing_everything
from core.system.failpoints import failpoint
from service.app_state import AppState
from service.auth.authentication import viewer_of
from service.submission.stages import InsertedJob, PreparedJob, RequestOrigin, ValidatedJob
from service.submission.validation import DEFAULT_PROJECT


def prepared_job(app_state: AppState, origin: RequestOrigin, valid: ValidatedJob, **others: Any) -> PreparedJob:  # noqa: ANN401 - fields
    """Return a checked job as it is to be inserted; `others`: more fields of `PreparedJob`."""
    app_state.keys.rights(origin.key_id).check_machine_type(valid.machine.name)
    values: dict[str, Any] = {
        "spec": valid.spec,
        "machine": valid.machine,
        "backend": app_state.backend_for(valid.machine),
        "image": valid.image,
        "submitted_by": origin.key_id,
        "idempotency_key": origin.idempotency_key,
        "request_id": origin.request_id,
        "trace_parent": tracing.trace_parent(),
        "address": acting_address(),
        "notes": valid.notes,
        "answer_notes": valid.answer_notes,
    }
    return PreparedJob(**values | others)


@seeing_everything()
def insert(session: Session, app_state: AppState, prepared: PreparedJob) -> InsertedJob:
    """Insert a job, or all members of its array; or return what was created before under its Idempotency-Key.

    The first member has the Idempotency-Key, and is returned.
    """
    # The transaction may be of the request of another key, whose jobs are inserted along with this one.
    viewer = viewer_of(app_state, prepared.submitted_by)
    with seeing_as(viewer):
        project, is_new = find_project(session, viewer, prepared.project_id, prepared.project_name)
    prepared = replace(prepared, project_id=project.id)
    job = submission.find_repeated(session, prepared)
    if job is not None:
        return _inserted(prepared, project, job, created=False)
    with seeing_as(viewer):
        dependencies.check(session, prepared.spec)
    projects.check_quota(session, project, app_state.settings.disk.project_mb)
    new_jobs = _members(prepared)
    app_state.keys.rights(prepared.submitted_by).check_job_count(session, prepared.submitted_by, len(new_jobs))
    if len(new_jobs) > 1:
        app_state.limits.submissions.acquire(prepared.submitted_by, len(new_jobs) - 1)
    queue = app_state.limits.queue.admission(session)
    for _ in new_jobs:
        queue.admit(prepared.submitted_by, project.id)
    jobs = submission.insert_queued(session, new_jobs)
    if not jobs:  # another transaction has committed one with this Idempotency-Key meanwhile
        if is_new:
            session.execute(delete(Project).where(Project.id == project.id))
        return _inserted(prepared, project, submission.get_repeated(session, prepared), created=False)
    budgets.check(session, jobs[0], len(jobs) if jobs[0].nodes is not None else 1)
    for job in jobs:
        for text in prepared.notes:
            job_notes.add(session, job, text)
        if prepared.save_logins is not None:
            prepared.save_logins(session, job)
    if prepared.spec.notify:
        _follow(session, jobs[0])
    on_commit(session, app_state.wake)
    failpoint("submit_before_commit")
    return _inserted(prepared, project, jobs[0], created=True)


def _follow(session: Session, first: Job) -> None:
    """Let the receivers that a new job names get its messages, or those of its array."""
    if is_sweep_id(first.array_id):
        return  # its sweep names them
    kind = "array" if first.array_id else "schedule" if first.schedule_id else "job"
    receivers.follow(session, first.spec.notify, kind, first.array_id or first.id)


def find_project(
    session: Session, viewer: Viewer, project_id: str | None, name: str | None, *, create: bool = True
) -> tuple[Project, bool]:
    """Return a project that a key may submit to, and whether it is new; with an empty id if not `create`."""
    if project_id is not None:
        project: Project | None = queries.project(session, project_id)
    else:
        name = name or DEFAULT_PROJECT
        key_rights.check_project(session, viewer.projects, name)
        project = projects.find_for_submission(session, name)
    if project is None:
        made = projects.get_or_create(session, name or "", viewer.key_id) if create else None
        return made or (Project(id="", name=name), True)
    members.check_may_submit(session, viewer.key_id, project, is_administrator=viewer.sees_closed)
    return project, False


def _members(prepared: PreparedJob) -> list[PreparedJob]:
    if not prepared.members:
        return [prepared]
    spec = prepared.spec
    return [
        replace(
            prepared,
            array=member,
            parent_id=parent_id or prepared.parent_id,
            spec=replace(spec, name=spec.name and f"{spec.name}[{member.array_index}]"),
            idempotency_key=None if index else prepared.idempotency_key,
        )
        for index, (member, parent_id) in enumerate(prepared.members)
    ]


def _inserted(prepared: PreparedJob, project: Project, job: Job, *, created: bool) -> InsertedJob:
    return InsertedJob(job, project.name, created, [*prepared.answer_notes, *prepared.notes])
