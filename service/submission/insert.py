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
from core.system.failpoints import failpoint
from service.app_state import AppState
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
        "notes": valid.notes,
        "answer_notes": valid.answer_notes,
    }
    return PreparedJob(**values | others)


def insert(session: Session, app_state: AppState, prepared: PreparedJob) -> InsertedJob:
    """Insert a job, or all members of its array; or return what was created before under its Idempotency-Key.

    The first member has the Idempotency-Key, and is returned.
    """
    project, is_new = _find_project(session, prepared)
    prepared = replace(prepared, project_id=project.id)
    job = submission.find_repeated(session, prepared)
    if job is not None:
        return _inserted(prepared, project, job, created=False)
    dependencies.check(session, prepared.spec)
    projects.check_quota(session, project, app_state.settings.disk.project_mb)
    members, rights = _members(prepared), app_state.keys.rights(prepared.submitted_by)
    rights.check_project(session, project.id, project.name)
    rights.check_job_count(session, prepared.submitted_by, len(members))
    if len(members) > 1:
        app_state.limits.submissions.acquire(prepared.submitted_by, len(members) - 1)
    queue = app_state.limits.queue.admission(session)
    for _ in members:
        queue.admit(prepared.submitted_by, project.id)
    jobs = submission.insert_queued(session, members)
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


def _find_project(session: Session, prepared: PreparedJob) -> tuple[Project, bool]:
    """Return the job's project, and whether it was created now."""
    if prepared.project_id is not None:
        return queries.project(session, prepared.project_id), False
    name = prepared.project_name or DEFAULT_PROJECT
    project = projects.find_for_submission(session, name)
    return projects.get_or_create(session, name, prepared.submitted_by) if project is None else (project, False)


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
