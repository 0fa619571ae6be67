"""Retention policies: the policy of a project, the jobs due by it, and the database side of a deletion.

The database is updated before files are deleted, so that no page names a deleted file. Pending deletions are in
`pending_deletions` until their files are deleted, so that a crash in between leaves no files forever.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import NamedTuple

from sqlalchemy import delete, literal, select, tuple_, update
from sqlalchemy.orm import Session

from core.db.database import UtcDateTime, now
from core.db.models.job_params import JobParam
from core.db.models.jobs import Event, Job, PendingDeletion, Project
from core.jobs.guarded_updates import add_event, insert_ignore
from core.jobs.states import TERMINAL, JobState
from core.jobs.templates import templates
from core.settings.limits import RetentionSettings

FOREVER = 0  # value in a project's row: keep forever, regardless of the settings
DAY_SECONDS = 86_400.0


class OutputKind(StrEnum):
    LOGS = "logs"
    ARTIFACTS = "artifacts"


EVENT = "retention"  # kind of the event that records a deletion; its reason names the output
_REASONS = {OutputKind.LOGS: "logs_removed", OutputKind.ARTIFACTS: "artifacts_removed"}
_REMOVED_AT = {OutputKind.LOGS: Job.logs_removed_at, OutputKind.ARTIFACTS: Job.artifacts_removed_at}
_PROJECT_DAYS = {OutputKind.LOGS: Project.keep_logs_days, OutputKind.ARTIFACTS: Project.keep_artifacts_days}
_NAMES = {OutputKind.LOGS: "log", OutputKind.ARTIFACTS: "artifacts"}
_VERBS = {OutputKind.LOGS: "was", OutputKind.ARTIFACTS: "were"}
_ACTIVE_STATES = [state for state in JobState if state not in TERMINAL]

_DELETED_AND_ENDED = Job.deleted_at.is_not(None) & Job.state.in_(TERMINAL)


@dataclass(frozen=True, slots=True)
class Policy:
    days: int | None  # days after the end of the job; None: forever
    own: bool  # True if it is the project's own, False if it comes from the service's settings

    @property
    def describe(self) -> str:
        whose = "its project's policy" if self.own else "the service's settings"
        length = "forever" if self.days is None else f"{self.days} day{'s' * (self.days != 1)} after the job's end"
        return f"kept {length} by {whose}"


class DueRemoval(NamedTuple):
    """A job whose log or artifacts are due for deletion."""

    id: str
    seq: int
    attempt: int
    finished_at: datetime


class RecordedRemoval(NamedTuple):
    """A deletion of a job's output: kind, time, and a sentence about it."""

    kind: OutputKind
    at: datetime
    message: str


def policy_for(project: Project, kind: OutputKind, settings: RetentionSettings) -> Policy:
    """Return the policy for a project: its own, else that of the service's settings."""
    days: int | None = getattr(project, _PROJECT_DAYS[kind].key)
    if days is None:
        return Policy(settings.logs_days if kind is OutputKind.LOGS else settings.artifacts_days, own=False)
    return Policy(None if days == FOREVER else days, own=True)


def due_removals(
    session: Session, project_id: str, kind: OutputKind, days: int, *, after: DueRemoval | None, limit: int
) -> list[DueRemoval]:
    """Return jobs of a project whose logs or artifacts are due for deletion, the earliest ended first.

    `days`: days that it is kept.
    """
    query = (
        select(Job.id, Job.seq, Job.attempt, Job.finished_at)
        .where(
            Job.project_id == project_id,
            Job.finished_at < now(-days * DAY_SECONDS),
            Job.state.in_(TERMINAL),
            Job.deleted_at.is_(None),
            _REMOVED_AT[kind].is_(None),
        )
        .order_by(Job.finished_at, Job.seq)
        .limit(limit)
    )
    if kind is OutputKind.ARTIFACTS:
        query = query.where(Job.id.not_in(templates.needed_jobs(session)))
    if after is not None:
        position = tuple_(literal(after.finished_at, UtcDateTime()), literal(after.seq))
        query = query.where(tuple_(Job.finished_at, Job.seq) > position)
    rows = session.execute(query)
    return [DueRemoval(id_, seq, attempt, ended) for id_, seq, attempt, ended in rows if ended is not None]


def mark_expired(
    session: Session, kind: OutputKind, jobs: Collection[str], why: str, *, left: Collection[str]
) -> list[str]:
    """Mark the logs or artifacts of these jobs as removed; the caller deletes the files after the commit.

    `left`: those among the jobs that have such output: only these get an event. Returns ids of the jobs marked now,
    without those marked earlier or by another process.
    """
    column = _REMOVED_AT[kind]
    ours = select(Job).where(Job.id.in_(jobs), Job.state.in_(TERMINAL), column.is_(None)).order_by(Job.seq)
    # Rows locked by a concurrent deletion are left to it.
    marked = list(session.scalars(ours.with_for_update(skip_locked=True)))
    partly_expired = [job for job in marked if job.id in left]
    _update_jobs(session, marked, {column.key: now()})
    if kind is OutputKind.ARTIFACTS:
        _update_jobs(session, partly_expired, {"artifacts_state": "removed"})
    detail = f"The {_NAMES[kind]} {_VERBS[kind]} removed: {why}."
    for job in partly_expired:
        add_event(session, job, EVENT, reason=_REASONS[kind], detail=detail)
    if marked:
        removals = insert_ignore(session.get_bind().dialect.name, PendingDeletion).values(at=now())
        session.execute(removals, [{"job_id": job.id, "what": kind.value} for job in marked])
    return [job.id for job in marked]


def _update_jobs(session: Session, jobs: Sequence[Job], values: dict[str, object]) -> None:
    if jobs:
        statement = update(Job).where(Job.seq.in_([job.seq for job in jobs])).values(values)
        session.execute(statement.execution_options(synchronize_session=False))


def pending_removals(
    session: Session, *, after: tuple[str, str] = ("", ""), limit: int
) -> list[tuple[str, OutputKind]]:
    """Return pending deletions, whose files may still exist, in order of job."""
    query = select(PendingDeletion.job_id, PendingDeletion.what).where(
        tuple_(PendingDeletion.job_id, PendingDeletion.what) > tuple_(*after)
    )
    rows = session.execute(query.order_by(PendingDeletion.job_id, PendingDeletion.what).limit(limit))
    return [(row.job_id, OutputKind(row.what)) for row in rows]


def clear_pending(session: Session, removals: Sequence[tuple[str, OutputKind]]) -> None:
    """Remove these from the pending deletions, after their files are deleted."""
    for kind in OutputKind:
        jobs = [job_id for job_id, what in removals if what is kind]
        if jobs:
            session.execute(
                delete(PendingDeletion).where(PendingDeletion.what == kind.value, PendingDeletion.job_id.in_(jobs))
            )


def recorded_removals(session: Session, jobs: Collection[Job]) -> dict[str, list[RecordedRemoval]]:
    """Return the recorded deletions of these jobs, by job id; no query if there are none."""
    touched = {job.id: job for job in jobs if job.logs_removed_at or job.artifacts_removed_at}
    if not touched:
        return {}
    kinds = {reason: kind for kind, reason in _REASONS.items()}
    query = select(Event).where(Event.job_id.in_(touched), Event.kind == EVENT).order_by(Event.id)
    removals: dict[str, list[RecordedRemoval]] = {}
    for event in session.scalars(query):
        if event.reason in kinds:
            removals.setdefault(event.job_id, []).append(
                RecordedRemoval(kinds[event.reason], event.at, event.detail or "")
            )
    return removals


def workspaces_of_deleted_jobs(session: Session) -> set[str]:
    """Return digests of workspaces that a deleted job names; other jobs may name them, too."""
    named = Job.spec_text("workspace_sha256")
    digests = session.scalars(select(named).where(_DELETED_AND_ENDED).distinct())
    return {sha256 for sha256 in digests if sha256 is not None}


def workspaces_still_named(session: Session, candidates: Sequence[str]) -> set[str]:
    """Return those of these digests that a schedule, a sweep, or a job names which is not deleted, or has not ended."""
    named = Job.spec_text("workspace_sha256")
    return templates.needed_workspaces(session) | set(
        session.scalars(select(named).where(named.in_(candidates), ~_DELETED_AND_ENDED).distinct())
    )


def needed_workspaces(session: Session, days: int) -> set[str]:
    """Return digests of workspaces needed by schedules, sweeps, and jobs that run, wait, or ended within `days`."""
    named = Job.spec_text("workspace_sha256")
    recent = (Job.finished_at >= now(-days * DAY_SECONDS)) & Job.deleted_at.is_(None)
    digests: set[str | None] = {*templates.needed_workspaces(session)}
    # Two statements, because each one uses an index of its own.
    for which in (Job.state.in_(_ACTIVE_STATES), recent):
        digests.update(session.scalars(select(named).where(which).distinct()))
    return {sha256 for sha256 in digests if sha256 is not None}


def mark_outputs_removed(session: Session, job_id: str) -> None:
    """Mark the logs and artifacts of a deleted job as removed, and forget its parameters."""
    session.execute(delete(JobParam).where(JobParam.job_id == job_id))
    gone = {"logs_removed_at": now(), "artifacts_removed_at": now()}
    session.execute(update(Job).where(Job.id == job_id).values(artifacts_state="removed", **gone))
