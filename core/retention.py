"""How long things are kept: whose policy says what, which jobs are due by it, and what their record says then.

The record is written first, files are removed after: no page names a file that is gone. What is still to be removed
stands in `removals` until it is, so that whoever dies in between leaves nothing behind for ever.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import NamedTuple

from sqlalchemy import delete, literal, select, tuple_, update
from sqlalchemy.orm import Session

from core.db import UtcDateTime, now
from core.jobs.models import Event, Job, Project, Removal
from core.jobs.moves import insert_once, record
from core.jobs.states import TERMINAL, JobState
from core.settings.retention import RetentionSettings

FOR_GOOD = 0
"""In a project's record: kept for good, whatever the settings say."""
DAY_SECONDS = 86_400.0


class Kind(StrEnum):
    """What of a job a policy removes."""

    LOGS = "logs"
    ARTIFACTS = "artifacts"


EVENT = "retention"
"""Kind of the event that says that something was removed; its reason says what."""
_REASONS = {Kind.LOGS: "logs_removed", Kind.ARTIFACTS: "artifacts_removed"}
_REMOVED_AT = {Kind.LOGS: Job.logs_removed_at, Kind.ARTIFACTS: Job.artifacts_removed_at}
_OWN = {Kind.LOGS: Project.keep_logs_days, Kind.ARTIFACTS: Project.keep_artifacts_days}
_NAMES = {Kind.LOGS: "log", Kind.ARTIFACTS: "artifacts"}
_VERBS = {Kind.LOGS: "was", Kind.ARTIFACTS: "were"}
_ALIVE = [state for state in JobState if state not in TERMINAL]


@dataclass(frozen=True, slots=True)
class Policy:
    """How long one kind of output is kept.

    Attributes:
        days: After the end of the job; None: for good.
        own: Whether the project says so itself, and not the service's settings.
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
    """A job whose log or artifacts are due to go: ended for long, by its project's policy."""

    id: str
    seq: int
    attempt: int
    finished_at: datetime


class Removed(NamedTuple):
    """What a policy removed of a job, when, and a sentence about it."""

    kind: Kind
    at: datetime
    message: str


def policy(project: Project, kind: Kind, settings: RetentionSettings) -> Policy:
    """What holds for a project: its own word, else the service's settings."""
    own: int | None = getattr(project, _OWN[kind].key)
    if own is None:
        return Policy(settings.logs_days if kind is Kind.LOGS else settings.artifacts_days, own=False)
    return Policy(None if own == FOR_GOOD else own, own=True)


def due(session: Session, project_id: str, kind: Kind, days: int, *, after: Due | None, limit: int) -> list[Due]:
    """Jobs of a project whose logs or artifacts have been kept for long enough, the longest ended first.

    Args:
        session: Reads.
        project_id: The project.
        kind: What would be removed.
        days: How long it is kept.
        after: The last job of the page before.
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
    """Say in the record that the logs or artifacts of these jobs are removed; their files go once this is committed.

    Args:
        session: Writes.
        kind: What is removed.
        jobs: Their ids.
        why: What it goes by, such as a policy's sentence.
        left: Those among the jobs that printed or left anything: only of these there is something to tell.

    Returns:
        Those that were not removed already: their files are for the caller to remove.
    """
    column = _REMOVED_AT[kind]
    ours = select(Job).where(Job.id.in_(jobs), Job.state.in_(TERMINAL), column.is_(None)).order_by(Job.seq)
    # Those that somebody else removes at this moment are left to them.
    marked = list(session.scalars(ours.with_for_update(skip_locked=True)))
    told = [job for job in marked if job.id in left]
    _set(session, marked, {column.key: now()})
    if kind is Kind.ARTIFACTS:
        _set(session, told, {"artifacts_state": "removed"})
    detail = f"The {_NAMES[kind]} {_VERBS[kind]} removed: {why}."
    for job in told:
        record(session, job, EVENT, reason=_REASONS[kind], detail=detail)
    if marked:
        removals = insert_once(session.get_bind().dialect.name, Removal).values(at=now())
        session.execute(removals, [{"job_id": job.id, "what": kind.value} for job in marked])
    return [job.id for job in marked]


def _set(session: Session, jobs: Sequence[Job], values: dict[str, object]) -> None:
    if jobs:
        statement = update(Job).where(Job.seq.in_([job.seq for job in jobs])).values(values)
        session.execute(statement.execution_options(synchronize_session=False))


def unfinished(session: Session, *, after: tuple[str, str] = ("", ""), limit: int) -> list[tuple[str, Kind]]:
    """Removals whose files are still to go, in order of job."""
    query = select(Removal.job_id, Removal.what).where(tuple_(Removal.job_id, Removal.what) > tuple_(*after))
    rows = session.execute(query.order_by(Removal.job_id, Removal.what).limit(limit))
    return [(row.job_id, Kind(row.what)) for row in rows]


def done(session: Session, removals: Sequence[tuple[str, Kind]]) -> None:
    """The files of these removals are gone."""
    for kind in Kind:
        jobs = [job_id for job_id, what in removals if what is kind]
        if jobs:
            session.execute(delete(Removal).where(Removal.what == kind.value, Removal.job_id.in_(jobs)))


def removed(session: Session, jobs: Collection[Job]) -> dict[str, list[Removed]]:
    """What policies removed of these jobs, by job id; asks nothing where nothing was removed."""
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
    """Digests of the archives that jobs need: those that are not over, and those that ended within so many days."""
    named = Job.spec_json["workspace_sha256"].as_string()
    recent = (Job.finished_at >= now(-days * DAY_SECONDS)) & Job.deleted_at.is_(None)
    found: set[str | None] = set()
    # Two statements: each is a search in an index of its own.
    for which in (Job.state.in_(_ALIVE), recent):
        found.update(session.scalars(select(named).where(which).distinct()))
    return {sha256 for sha256 in found if sha256 is not None}
