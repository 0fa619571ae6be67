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
from core.db.models.jobs import Event, Job, PendingDeletion, Project
from core.jobs.states import TERMINAL, JobState
from core.jobs.transitions import insert_once, record
from core.settings.retention import RetentionSettings

FOR_GOOD = 0
"""Value in a project's row: keep forever, whatever the settings say."""
DAY_SECONDS = 86_400.0


class Kind(StrEnum):
    """Kinds of output that a policy can delete."""

    LOGS = "logs"
    ARTIFACTS = "artifacts"


EVENT = "retention"
"""Kind of the event that records a deletion; its reason names the output."""
_REASONS = {Kind.LOGS: "logs_removed", Kind.ARTIFACTS: "artifacts_removed"}
_REMOVED_AT = {Kind.LOGS: Job.logs_removed_at, Kind.ARTIFACTS: Job.artifacts_removed_at}
_OWN = {Kind.LOGS: Project.keep_logs_days, Kind.ARTIFACTS: Project.keep_artifacts_days}
_NAMES = {Kind.LOGS: "log", Kind.ARTIFACTS: "artifacts"}
_VERBS = {Kind.LOGS: "was", Kind.ARTIFACTS: "were"}
_ALIVE = [state for state in JobState if state not in TERMINAL]


@dataclass(frozen=True, slots=True)
class Policy:
    """The retention policy for one kind of output.

    Attributes:
        days: Days after the end of the job; None: forever.
        own: True if it is the project's own, False if it comes from the service's settings.
    """

    days: int | None
    own: bool

    @property
    def sentence(self) -> str:
        """The policy in words."""
        whose = "its project's policy" if self.own else "the service's settings"
        length = "for good" if self.days is None else f"{self.days} day{'s' * (self.days != 1)} after the job's end"
        return f"kept {length} by {whose}"


class Due(NamedTuple):
    """A job whose log or artifacts are due for deletion."""

    id: str
    seq: int
    attempt: int
    finished_at: datetime


class Removed(NamedTuple):
    """A deletion of a job's output: kind, time, and a sentence about it."""

    kind: Kind
    at: datetime
    message: str


def policy(project: Project, kind: Kind, settings: RetentionSettings) -> Policy:
    """Return the policy for a project: its own, else that of the service's settings."""
    own: int | None = getattr(project, _OWN[kind].key)
    if own is None:
        return Policy(settings.logs_days if kind is Kind.LOGS else settings.artifacts_days, own=False)
    return Policy(None if own == FOR_GOOD else own, own=True)


def due(session: Session, project_id: str, kind: Kind, days: int, *, after: Due | None, limit: int) -> list[Due]:
    """Return jobs of a project whose logs or artifacts are due for deletion, the earliest ended first.

    Args:
        session: Reads.
        project_id: The project.
        kind: Kind of output.
        days: Days that it is kept.
        after: The last job of the previous page.
        limit: Most jobs to return.
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
    if after is not None:
        place = tuple_(literal(after.finished_at, UtcDateTime()), literal(after.seq))
        query = query.where(tuple_(Job.finished_at, Job.seq) > place)
    rows = session.execute(query)
    return [Due(id_, seq, attempt, ended) for id_, seq, attempt, ended in rows if ended is not None]


def expire(session: Session, kind: Kind, jobs: Collection[str], why: str, *, left: Collection[str]) -> list[str]:
    """Mark the logs or artifacts of these jobs as removed; the caller deletes the files after the commit.

    Args:
        session: Writes.
        kind: Kind of output.
        jobs: Their ids.
        why: The reason, such as a policy's sentence.
        left: Those among the jobs that have such output: only these get an event.

    Returns:
        Ids of the jobs marked now, without those marked earlier or by another process.
    """
    column = _REMOVED_AT[kind]
    ours = select(Job).where(Job.id.in_(jobs), Job.state.in_(TERMINAL), column.is_(None)).order_by(Job.seq)
    # Rows locked by a concurrent deletion are left to it.
    marked = list(session.scalars(ours.with_for_update(skip_locked=True)))
    told = [job for job in marked if job.id in left]
    _set(session, marked, {column.key: now()})
    if kind is Kind.ARTIFACTS:
        _set(session, told, {"artifacts_state": "removed"})
    detail = f"The {_NAMES[kind]} {_VERBS[kind]} removed: {why}."
    for job in told:
        record(session, job, EVENT, reason=_REASONS[kind], detail=detail)
    if marked:
        removals = insert_once(session.get_bind().dialect.name, PendingDeletion).values(at=now())
        session.execute(removals, [{"job_id": job.id, "what": kind.value} for job in marked])
    return [job.id for job in marked]


def _set(session: Session, jobs: Sequence[Job], values: dict[str, object]) -> None:
    if jobs:
        statement = update(Job).where(Job.seq.in_([job.seq for job in jobs])).values(values)
        session.execute(statement.execution_options(synchronize_session=False))


def unfinished(session: Session, *, after: tuple[str, str] = ("", ""), limit: int) -> list[tuple[str, Kind]]:
    """Return pending deletions, whose files may still exist, in order of job."""
    query = select(PendingDeletion.job_id, PendingDeletion.what).where(
        tuple_(PendingDeletion.job_id, PendingDeletion.what) > tuple_(*after)
    )
    rows = session.execute(query.order_by(PendingDeletion.job_id, PendingDeletion.what).limit(limit))
    return [(row.job_id, Kind(row.what)) for row in rows]


def done(session: Session, removals: Sequence[tuple[str, Kind]]) -> None:
    """Remove these from the pending deletions, after their files are deleted."""
    for kind in Kind:
        jobs = [job_id for job_id, what in removals if what is kind]
        if jobs:
            session.execute(
                delete(PendingDeletion).where(PendingDeletion.what == kind.value, PendingDeletion.job_id.in_(jobs))
            )


def removed(session: Session, jobs: Collection[Job]) -> dict[str, list[Removed]]:
    """Return the recorded deletions of these jobs, by job id; no query if there are none."""
    touched = {job.id: job for job in jobs if job.logs_removed_at or job.artifacts_removed_at}
    if not touched:
        return {}
    kinds = {reason: kind for kind, reason in _REASONS.items()}
    query = select(Event).where(Event.job_id.in_(touched), Event.kind == EVENT).order_by(Event.id)
    found: dict[str, list[Removed]] = {}
    for event in session.scalars(query):
        if event.reason in kinds:
            found.setdefault(event.job_id, []).append(Removed(kinds[event.reason], event.at, event.detail or ""))
    return found


def needed_workspaces(session: Session, days: int) -> set[str]:
    """Return digests of archives needed by jobs that have not ended, or that ended within `days`."""
    named = Job.spec_text("workspace_sha256")
    recent = (Job.finished_at >= now(-days * DAY_SECONDS)) & Job.deleted_at.is_(None)
    found: set[str | None] = set()
    # Two statements, because each one uses an index of its own.
    for which in (Job.state.in_(_ALIVE), recent):
        found.update(session.scalars(select(named).where(which).distinct()))
    return {sha256 for sha256 in found if sha256 is not None}
