"""Queries for jobs, attempts, events and projects. Pagination by key, not offset: the same cost at any depth."""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Select, and_, bindparam, exists, false, func, literal, or_, select, text
from sqlalchemy.orm import Session, aliased, load_only

from core.db.database import now
from core.db.light_rows import LightRows
from core.db.models.comparisons import Comparison
from core.db.models.credentials import ApiKey
from core.db.models.jobs import IS_COUNTED_QUEUED, IS_FAILED, IS_QUEUED, Attempt, Event, Job, Project, Worker
from core.db.prepared import Prepared
from core.errors import JobNotFound, ProjectNotFound
from core.jobs.guarded_updates import STOP_REQUESTED
from core.jobs.states import OWNED, JobState
from core.search.ordering import Ordering, parse_cursor
from core.security.actor import record_read
from core.security.visibility import hidden_projects, seeing_everything

WORKER_STALE_SECONDS = 60
_SPEC_FIELDS = ("container", "command", "workspace")  # filter fields that are stored only in the spec's JSON
_LAST_ID_CHARACTERS = "z" * 13
FEW_JOBS = 10_000
SORTED_JOBS = 10_000  # jobs that a sorted list looks at: the newest that match


_INDEX = re.compile(r"\d{1,9}\Z", re.ASCII)
_earlier = aliased(Job)
_EARLIER_MEMBER = (
    select(_earlier.seq)
    .where(_earlier.array_id == Job.array_id, _earlier.array_index < Job.array_index, _earlier.deleted_at.is_(None))
    .correlate(Job)
    .exists()
)
"""True for a member of an array that is not its first."""
COMPARISON = "c"  # begins the ids of comparisons
_LATER_OF_COMPARISON = and_(
    Job.cost_set.startswith(COMPARISON),
    exists().where(Comparison.id == Job.cost_set),
    exists().where(_earlier.cost_set == Job.cost_set, _earlier.seq < Job.seq, _earlier.deleted_at.is_(None)),
)
"""True for a job that a comparison submitted, except its first."""

JOB_ROWS = LightRows(Job)
_EVENT_ROWS = LightRows(Event)
_PROJECT_ROWS = LightRows(Project)
_ATTEMPT_ROWS = LightRows(Attempt)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFilter:
    """Filters for a list of jobs; an empty field does not filter.

    `states`, `reasons` and `tags` list alternatives; all fields must match together. `failed_with_exit_code`
    restricts only failed jobs: True keeps those with an exit code, False those without. `text` is a part of the name,
    the command or the note, in any case; `submitted_by` ids of API keys; `conditions` are those of a query.
    """

    states: Sequence[JobState] = ()
    reasons: Sequence[str] = ()
    not_reasons: Sequence[str] = ()
    failed_with_exit_code: bool | None = None
    project_id: str | None = None
    project: str | None = None
    machine_type: str | None = None
    name: str | None = None
    container: str | None = None
    command: str | None = None
    workspace: str | None = None
    tags: Sequence[str] = ()
    id_prefix: str | None = None
    array: str | None = None
    folded: bool = False  # only the first member of each array
    comparisons_folded: bool = False  # only the first job that each comparison submitted
    text: str | None = None
    since: datetime | None = None
    submitted_by: Collection[str] = ()
    conditions: Sequence[ColumnElement[bool]] = ()


@dataclass(frozen=True, slots=True)
class JobPage:
    """One page of jobs, and the cursors of the next and the previous page, if there are any."""

    jobs: list[Job]
    next_cursor: str | None
    previous_cursor: str | None = None


def get(session: Session, job_id: str) -> Job:
    rows = _job().rows(session, {"job_id": job_id})
    job, hidden = JOB_ROWS.make(rows[0]) if rows else None, hidden_projects(session)  # asked for a made-up id, too
    if job is None or job.project_id in hidden:
        raise JobNotFound(job_id)
    record_read(job.project_id, f"job {job.id}")
    return job


@cache
def _job() -> Prepared:
    return Prepared(_all_columns().where(Job.id == bindparam("job_id"), Job.deleted_at.is_(None)))


def by_ids(session: Session, ids: Sequence[str]) -> list[Job]:
    """Return the jobs of these ids, even deleted ones; those that do not exist are left out."""
    return list(session.scalars(select(Job).where(Job.id.in_(ids))))


def shown_names(session: Session, ids: Sequence[str]) -> dict[str, str]:
    """Return the names by which pages show these jobs, by id; those that do not exist are left out."""
    named = select(Job).options(load_only(Job.id, Job.name, Job.seq, Job.spec_json)).where(Job.id.in_(ids))
    return {job.id: job.shown_name for job in session.scalars(named)}


def queued(session: Session, *, limit: int) -> list[Job]:
    """Return the first waiting jobs, by priority and age."""
    if hidden_projects(session):
        return list(session.scalars(select(Job).where(IS_QUEUED).order_by(Job.priority.desc(), Job.seq).limit(limit)))
    # SQLite has no statistics: it takes the index of states to be short, and would sort all that wait.
    hint = "" if session.get_bind().dialect.name == "postgresql" else "INDEXED BY ix_jobs_queue"
    first = f"SELECT seq FROM jobs {hint} WHERE state = 'queued' ORDER BY priority DESC, seq LIMIT :first"  # noqa: S608 - constants
    seqs = session.scalars(text(first), {"first": limit}).all()
    return list(session.scalars(select(Job).where(Job.seq.in_(seqs)).order_by(Job.priority.desc(), Job.seq)))


@seeing_everything()
def queue_sizes(session: Session) -> list[tuple[str, int, datetime]]:
    """Return the number of waiting jobs and the oldest submission of each machine type, the longest queue first."""
    number = func.count()
    waiting = select(Job.machine_type, number, func.min(Job.created_at)).where(IS_COUNTED_QUEUED)
    return [
        (row[0], row[1], row[2])
        for row in session.execute(waiting.group_by(Job.machine_type).order_by(number.desc(), Job.machine_type))
    ]


def failed_since(session: Session, since: datetime, *, limit: int) -> list[Job]:
    """Return the jobs that failed at this time or later, the last one first."""
    failed = select(Job).where(Job.finished_at >= since, IS_FAILED, Job.deleted_at.is_(None))
    return list(session.scalars(failed.order_by(Job.finished_at.desc()).limit(limit)))


def get_row(session: Session, job_id: str) -> Job | None:
    """Return the job's row, even of a deleted job; None if there is none."""
    return session.scalar(select(Job).where(Job.id == job_id))


def runs_on_other_host(session: Session, job_id: str, attempt: int, host: str, *, seconds: float) -> bool:
    """Check whether the attempt ran on another host, with a worker's heartbeat within `seconds`."""
    on_living_host = (
        select(Attempt.job_id)
        .join(Worker, Worker.host == Attempt.host)
        .where(
            Attempt.job_id == job_id, Attempt.attempt == attempt, Attempt.host != host, Worker.seen_at >= now(-seconds)
        )
    )
    return session.scalar(on_living_host.limit(1)) is not None


def ids(session: Session, wanted: JobFilter, *, most: int) -> list[str]:
    """Return the ids of the jobs that match, the newest first."""
    matches = _matching(session, wanted).with_only_columns(Job.id).order_by(Job.seq.desc())
    return list(session.scalars(matches.limit(most)))


def page(
    session: Session,
    wanted: JobFilter,
    *,
    limit: int,
    after: str | None = None,
    before: str | None = None,
    ordering: Ordering | None = None,
) -> JobPage:
    """Return one page of jobs, newest first unless `ordering` says otherwise.

    With an ordering, except the oldest first, only the newest SORTED_JOBS that match are sorted, so that the cost does
    not grow with the table.
    """
    matches = _matching(session, wanted)
    cursor, backwards = (after, False) if before is None else (before, True)
    position = None if cursor is None else parse_cursor(cursor, "before" if backwards else "after")
    if ordering is None or ordering.expression is Job.seq:
        ascending = backwards == (ordering is None)
        query = matches.order_by(Job.seq.asc() if ascending else Job.seq.desc())
        if position is not None:
            query = query.where(Job.seq > position if ascending else Job.seq < position)
    else:
        newest = matches.with_only_columns(Job.seq).order_by(Job.seq.desc()).limit(SORTED_JOBS).subquery()
        query = _all_columns().where(Job.seq.in_(select(newest.c.seq))).order_by(*ordering.columns(backwards=backwards))
        if position is not None:
            query = query.where(ordering.beyond(session, position, backwards=backwards))
    found_jobs = [JOB_ROWS.make(row) for row in session.execute(query.limit(limit + 1))]
    more, jobs = len(found_jobs) > limit, found_jobs[:limit]
    if backwards:
        jobs.reverse()
    following = bool(jobs) if backwards else more
    preceding = more if backwards else after is not None and bool(jobs)
    return JobPage(jobs, str(jobs[-1].seq) if following else None, str(jobs[0].seq) if preceding else None)


def newest(session: Session, wanted: JobFilter, *, most: int) -> ColumnElement[bool]:
    """Build the condition that a job is one of the newest that match."""
    return Job.seq.in_(_matching(session, wanted).with_only_columns(Job.seq).order_by(Job.seq.desc()).limit(most))


def count(session: Session, wanted: JobFilter, *, most: int) -> int:
    some = _matching(session, wanted).with_only_columns(Job.seq).limit(most).subquery()
    return session.scalar(select(func.count()).select_from(some)) or 0


@cache
def _all_columns() -> Select[*tuple[Any, ...]]:
    return select(*JOB_ROWS.columns)


def _matching(session: Session, wanted: JobFilter) -> Select[*tuple[Any, ...]]:
    query = _filtered(_all_columns().where(Job.deleted_at.is_(None)), wanted).where(*wanted.conditions)
    if wanted.folded:
        query = query.where(or_(Job.array_id.is_(None), ~_EARLIER_MEMBER))
    if wanted.comparisons_folded:
        query = query.where(or_(Job.cost_set.is_(None), ~_LATER_OF_COMPARISON))
    if wanted.machine_type:
        query = query.where(machine_condition(session, wanted.machine_type, in_one_state=len(wanted.states) == 1))
    return query.where(has_any_tag(session, wanted.tags)) if wanted.tags else query


def _filtered(query: Select[*tuple[Any, ...]], wanted: JobFilter) -> Select[*tuple[Any, ...]]:
    if wanted.states:
        query = query.where(Job.state.in_(wanted.states))
    if wanted.reasons:
        query = query.where(Job.reason.in_(wanted.reasons))
    if wanted.not_reasons:
        query = query.where(or_(Job.reason.is_(None), Job.reason.not_in(wanted.not_reasons)))
    if wanted.failed_with_exit_code is not None:
        has_code = Job.exit_code.is_not(None)
        query = query.where(or_(Job.state != JobState.FAILED, has_code if wanted.failed_with_exit_code else ~has_code))
    if wanted.project_id:
        query = query.where(Job.project_id == wanted.project_id)
    if wanted.project:
        named = select(Project.id).where(Project.name == wanted.project).scalar_subquery()
        query = query.where(Job.project_id == named)
    if wanted.array:
        query = query.where(array_condition(wanted.array))
    if wanted.name:
        query = query.where(Job.name == wanted.name)
    requested = {name: value for name in _SPEC_FIELDS if (value := getattr(wanted, name))}
    return _searched(query.where(*(Job.spec_text(name) == value for name, value in requested.items())), wanted)


def _searched(query: Select[*tuple[Any, ...]], wanted: JobFilter) -> Select[*tuple[Any, ...]]:
    """Apply the filters by which people find their own jobs again."""
    if wanted.id_prefix:
        query = query.where(id_condition(wanted.id_prefix))
    if wanted.text:
        query = query.where(contains_text(wanted.text))
    if wanted.since:
        query = query.where(Job.created_at >= wanted.since)
    if wanted.submitted_by:
        query = query.where(Job.submitted_by.in_(wanted.submitted_by))
    return query


def contains_text(text: str) -> ColumnElement[bool]:
    """Build the condition that a job's name, command or note contains the text."""
    searched = Job.name, Job.spec_text("command"), Job.note
    return or_(*(column.icontains(text, autoescape=True) for column in searched))


def id_condition(prefix: str) -> ColumnElement[bool]:
    """Build the condition that a job's id begins so: a range, which the index serves under every collation."""
    return and_(Job.id >= prefix, Job.id <= prefix + _LAST_ID_CHARACTERS)


def array_condition(text: str) -> ColumnElement[bool]:
    """Build the condition that a job is a member of this array, or the one of this index: `ID_INDEX`."""
    array_id, _, index = text.partition("_")
    in_array = Job.array_id == array_id
    if not index:
        return in_array
    return and_(in_array, Job.array_index == int(index)) if _INDEX.match(index) else false()


def member_condition(ids: Collection[str]) -> ColumnElement[bool]:
    """Build the condition that a job is a member of one of these arrays, or was submitted by one of these comparisons.

    Each has an index of its own.
    """
    return or_(Job.array_id.in_(ids), Job.cost_set.in_([set_id for set_id in ids if set_id.startswith(COMPARISON)]))


def members(session: Session, array_id: str) -> list[Job]:
    """Return the members of an array, by index; raises `JobNotFound`: it has none, or they were deleted."""
    query = select(Job).where(Job.array_id == array_id, Job.deleted_at.is_(None)).order_by(Job.array_index)
    jobs = list(session.scalars(query))
    if not jobs:
        raise JobNotFound(array_id)
    return jobs


def machine_condition(session: Session, machine_type: str, *, in_one_state: bool) -> ColumnElement[bool]:
    """Build the condition that a job is for this machine type.

    `in_one_state`: whether only jobs in one state are wanted. SQLite would read those of the machine type, newest
    first, among them all that wait; unless they are few, it has to use the index of states.
    """
    condition = Job.machine_type == machine_type
    if not in_one_state or session.get_bind().dialect.name == "postgresql":
        return condition
    some = select(Job.seq).where(condition).limit(FEW_JOBS).subquery()
    is_few = (session.scalar(select(func.count()).select_from(some)) or 0) < FEW_JOBS
    return condition if is_few else Job.machine_type.concat("") == machine_type


def has_any_tag(session: Session, tags: Sequence[str]) -> ColumnElement[bool]:
    """Build the condition that a job has one of these tags; the databases unnest JSON differently."""
    if session.get_bind().dialect.name == "postgresql":
        rows = func.json_array_elements_text(Job.spec_json["tags"]).table_valued("value")
    else:
        rows = func.json_each(Job.spec_json, "$.tags").table_valued("value")
    return exists(select(literal(1)).select_from(rows).where(rows.c.value.in_(tags)))


def events(session: Session, job_id: str) -> list[Event]:
    return [_EVENT_ROWS.make(row) for row in session.execute(_events(), {"of_job": job_id})]


@cache
def _events() -> Select[*tuple[Any, ...]]:
    return select(*_EVENT_ROWS.columns).where(Event.job_id == bindparam("of_job")).order_by(Event.id)


def attempts(session: Session, job_id: str) -> list[Attempt]:
    return list(session.scalars(select(Attempt).where(Attempt.job_id == job_id).order_by(Attempt.attempt)))


def attempt(session: Session, job_id: str, number: int) -> Attempt | None:
    return session.get(Attempt, (job_id, number))


def projects(session: Session) -> list[Project]:
    query = select(*_PROJECT_ROWS.columns).where(Project.deleted_at.is_(None)).order_by(Project.name)
    return [_PROJECT_ROWS.make(row) for row in session.execute(query)]


@seeing_everything()
def job_counts(session: Session) -> dict[str, int]:
    """Count the jobs of each project, by project id. Reads all jobs."""
    counts = select(Job.project_id, func.count().label("jobs")).where(Job.deleted_at.is_(None)).group_by(Job.project_id)
    return dict(session.execute(counts).all())


def last_seq(session: Session) -> int:
    """Return the `seq` of the newest job: about how many there are."""
    return session.scalar(select(func.max(Job.seq))) or 0


def project(session: Session, project_id: str) -> Project:
    project = session.get(Project, project_id)
    if project is None or project.deleted_at is not None:
        raise ProjectNotFound(
            f"No such project: {project_id!r}. `gradient-cli projects list` shows them.", field="projectId"
        )
    record_read(project.id, f"project {project.name} ({project.id})")
    return project


def job_tags(session: Session, ids: Sequence[str]) -> dict[str, list[str]]:
    """Return the tags of the jobs of these ids, by id; jobs that do not exist are left out."""
    jobs = session.scalars(select(Job).where(Job.id.in_(ids), Job.deleted_at.is_(None)))
    return {job.id: list(job.spec.tags) for job in jobs}


def project_tags(session: Session, ids: Sequence[str]) -> dict[str, list[str]]:
    """Return the tags of the projects of these ids, by id; projects that do not exist are left out."""
    projects = session.scalars(select(Project).where(Project.id.in_(ids), Project.deleted_at.is_(None)))
    return {project.id: list(project.tags or ()) for project in projects}


def job_count(session: Session, project_id: str) -> int:
    visible = (Job.project_id == project_id) & Job.deleted_at.is_(None)
    return session.scalar(select(func.count(Job.seq)).where(visible)) or 0


def stale_jobs(session: Session, seconds: float) -> list[Job]:
    """Return jobs that a worker holds without a heartbeat for longer than `seconds`, longest first."""
    quiet = select(Job).where(Job.state.in_(OWNED), Job.heartbeat_at < now(-seconds))
    return list(session.scalars(quiet.order_by(Job.heartbeat_at)))


def stored_bytes(session: Session, *, days: float) -> int:
    """Sum the bytes of logs and artifacts kept of attempts that ended within `days`. Reads all attempts."""
    kept = func.coalesce(Attempt.log_bytes, 0) + func.coalesce(Attempt.artifact_bytes, 0)
    lately = Attempt.ended_at >= now(-days * 86400)
    return int(session.scalar(select(func.coalesce(func.sum(kept), 0)).where(lately)) or 0)


def newest_event_at(session: Session) -> datetime | None:
    """Return the time of the newest event of any job; None if there is none."""
    return session.scalar(select(Event.at).order_by(Event.id.desc()).limit(1))


def running_seconds(session: Session, job: Job) -> float:
    """Return how long this attempt's command has run, by the database's clock; 0 before it starts."""
    started, current = session.execute(select(Job.started_at, now()).where(Job.id == job.id)).one()
    return (current - started).total_seconds() if started else 0.0


class JobRelations(NamedTuple):
    """The rows around a job's."""

    project: str
    owner: str | None  # name of the key that submitted it; None: the key does not exist any more
    attempt: Attempt | None  # its current attempt; None: there was none yet


def stopped_by(session: Session, jobs: Sequence[Job]) -> dict[str, str]:
    """Return the names of the API keys that asked to stop those of these jobs that ended so, by job id."""
    ids = [job.id for job in jobs if job.reason == "stopped_by_user"]
    requests = Event.job_id.in_(ids), Event.kind.in_((STOP_REQUESTED, "finished"))
    actors = select(Event.job_id, ApiKey.name, Event.id).join(ApiKey, ApiKey.id == Event.actor).where(*requests)
    return {job_id: name for job_id, name, _ in session.execute(actors.order_by(Event.id.desc()))} if ids else {}


def relations_of(session: Session, jobs: Sequence[Job]) -> dict[str, JobRelations]:
    """Return the rows around these jobs' by job id."""
    rows = session.execute(_relations(), {"ids": [job.id for job in jobs]})
    return {
        job_id: JobRelations(project, owner, _ATTEMPT_ROWS.make(attempt) if attempt[0] is not None else None)
        for job_id, project, owner, *attempt in rows
    }


@cache
def _relations() -> Select[*tuple[Any, ...]]:
    current = (Attempt.job_id == Job.id) & (Attempt.attempt == Job.attempt)
    return (
        select(Job.id, Project.name, ApiKey.name, *_ATTEMPT_ROWS.columns)
        .select_from(Job)
        .join(Project, Project.id == Job.project_id)
        .outerjoin(ApiKey, ApiKey.id == Job.submitted_by)
        .outerjoin(Attempt, current)
        .where(Job.id.in_(bindparam("ids", expanding=True)))
    )
