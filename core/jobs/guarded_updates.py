"""Building blocks of transitions: statements guarded by the job's lease and state, events, outbox messages."""

from collections.abc import Sequence
from datetime import datetime
from functools import cache, lru_cache
from typing import Any

from sqlalchemy import (
    ClauseElement,
    FromClause,
    String,
    Update,
    and_,
    bindparam,
    case,
    exists,
    func,
    insert,
    literal,
    or_,
    select,
    true,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session, make_transient_to_detached

from core.db.database import Base, now
from core.db.models.jobs import Attempt, Event, Job, Outbox
from core.db.models.notifications import NotificationRule
from core.db.prepared import Prepared, is_one_of
from core.errors import LeaseLost
from core.jobs.scheduling.port_allocations import release
from core.jobs.spec import guards
from core.jobs.states import OWNED, SOURCES, WAITING_PHASE, JobState
from core.security.actor import acting_address

STOP_REQUESTED = "stop_requested"  # kind of an event, with the detail `AT_ONCE` for a stop without a grace period
AT_ONCE = "at once"

_KEPT_STATEMENTS = 128
_Expressions = frozenset[tuple[str, ClauseElement | None]]  # columns, each with the expression that it gets, or None

NOW = now()  # the current time, as the value of a column: one object, so that statements with it are built once

# Core statements, not ORM, and each built once: these run at every transition, and building takes as long as running.
JOBS = Base.metadata.tables[Job.__tablename__]
_ATTEMPTS = Base.metadata.tables[Attempt.__tablename__]
NEXT_LEASE = JOBS.c.lease + 1  # as `NOW`
_JOB_ATTRIBUTES = tuple(Job.__mapper__.get_property_by_column(column).key for column in JOBS.c)
_EVENTS = insert(Base.metadata.tables[Event.__tablename__])
_INSERT_EVENT = _EVENTS.values(at=NOW)
_ADD_SUBMITTED_EVENT = Prepared(
    _INSERT_EVENT.values(kind="submitted", attempt=0, lease=0, to_state=JobState.QUEUED), ("job_id", "actor", "address")
)
_EVENT_COLUMNS = (
    *("job_id", "kind", "attempt", "lease", "from_state", "to_state", "phase", "reason", "detail", "actor"),
    "address",
)
_SUBJECTS = ("of_job", "of_array", "of_project", "of_key")
_RULES = Base.metadata.tables[NotificationRule.__tablename__]
_IS_FOLLOWED = exists().where(
    or_(
        _RULES.c.subject.in_([*(bindparam(name, type_=String) for name in _SUBJECTS), literal("*")]),
        and_(_RULES.c.subject >= "u", _RULES.c.subject < "v"),  # any user's: workers do not see whose key it is
    )
)
"""True if there may be a receiver for an event of a job."""


@cache
def _adding_event(*, notifies: bool, earlier: bool) -> Prepared:
    """Prepare the insertion of an event with receivers that it may have, and of one that gives its own time."""
    values = {} if earlier else {"at": NOW}
    columns = (*_EVENT_COLUMNS, *(["at"] if earlier else []))
    if notifies:
        return Prepared(_EVENTS.values(**values, to_notify=case((_IS_FOLLOWED, true()))), (*columns, *_SUBJECTS))
    return Prepared(_EVENTS.values(**values), columns)


_NOTIFYING = frozenset({"started", "kept", "finished", "requeued", guards.EVENT})
_ENQUEUE_WAKE = Prepared(
    insert(Base.metadata.tables[Outbox.__tablename__]).values(created_at=NOW, kind="wake"), ("job_id",)
)


def storable_text(text: str) -> str:
    """Replace what a database refuses: lone surrogates and, in PostgreSQL, NUL."""
    return text.encode(errors="replace").decode().replace("\0", "\N{REPLACEMENT CHARACTER}")


def insert_ignore(dialect: str, table: type[Any] | FromClause) -> Any:  # noqa: ANN401 - the two dialects share no class
    """Build `INSERT … ON CONFLICT DO NOTHING` for the database's dialect."""
    statement = (postgresql if dialect == "postgresql" else sqlite).insert(table)
    return statement.on_conflict_do_nothing()


def transition(
    session: Session,
    job: Job,
    target: JobState,
    sources: frozenset[JobState] = OWNED,
    **values: Any,  # noqa: ANN401 - column values
) -> Job:
    """Change the state from the one that the caller knows, if it is in `sources` and TRANSITIONS allows it."""
    updated = update_job(session, job, sources & SOURCES[target] & {job.state}, state=target, **values)
    if target not in OWNED:
        release(session, updated)
    return updated


def update_job(
    session: Session,
    job: Job,
    sources: frozenset[JobState],
    **values: Any,  # noqa: ANN401 - column values
) -> Job:
    """Change the job under its lease, in one of these states; return it as it is then, also to the session."""
    expressions, params = _split_values(values)
    guard = {"of_id": job.id, "of_lease": job.lease}
    rows = _update_job(expressions, sources).rows(session, params | guard)
    if not rows:
        raise LeaseLost(f"Job {job.id} is no longer held under lease {job.lease}.")
    updated = job_of(rows[0])
    return session.merge(updated, load=False) if session.identity_map else updated


@lru_cache(_KEPT_STATEMENTS)
def _update_job(expressions: _Expressions, sources: frozenset[JobState]) -> Prepared:
    return Prepared(
        update(JOBS)
        .where(
            JOBS.c.id == bindparam("of_id"),
            JOBS.c.lease == bindparam("of_lease"),
            is_one_of(JOBS.c.state, sorted(sources)),
        )
        .values(_new_values(expressions))
        .returning(*JOBS.c)
    )


def _split_values(values: dict[str, Any]) -> tuple[_Expressions, dict[str, Any]]:
    """Return the columns of a statement, each with the expression that it gets, and the parameters of the others.

    A text may come from a job's machine, and hold anything.
    """
    expressions = {name: value if isinstance(value, ClauseElement) else None for name, value in values.items()}
    params = {f"new_{name}": values[name] for name, expression in expressions.items() if expression is None}
    texts = {name: storable_text(value) for name, value in params.items() if type(value) is str}
    return frozenset(expressions.items()), params | texts


def _new_values(expressions: _Expressions) -> dict[str, Any]:
    return {name: bindparam(f"new_{name}") if value is None else value for name, value in expressions}


def job_of(row: Sequence[Any]) -> Job:
    """Return the job of a whole row, without a session."""
    job = Job()
    vars(job).update(zip(_JOB_ATTRIBUTES, row, strict=True))  # as loaded; setting each takes ten times as long
    make_transient_to_detached(job)
    return job


def with_values(job: Job, **values: Any) -> Job:  # noqa: ANN401 - column values
    """Return a copy of a job's row, without a session, with other values."""
    attributes = vars(job) | values
    copy = job_of([attributes[name] for name in _JOB_ATTRIBUTES])
    copy.keep_parsed(job.spec)
    return copy


def returning_all(session: Session, statement: Update) -> list[Job]:
    # The returned rows replace the session's stale copies.
    options = {"synchronize_session": False, "populate_existing": True}
    return list(session.scalars(statement.returning(Job), execution_options=options))


def update_attempt(session: Session, job: Job, **values: Any) -> None:  # noqa: ANN401 - column values
    expressions, params = _split_values(values)
    _update_attempt(expressions).execute(session, params | {"of_job": job.id, "of_attempt": job.attempt})


@lru_cache(_KEPT_STATEMENTS)
def _update_attempt(expressions: _Expressions) -> Prepared:
    of_attempt = _ATTEMPTS.c.job_id == bindparam("of_job"), _ATTEMPTS.c.attempt == bindparam("of_attempt")
    return Prepared(update(_ATTEMPTS).where(*of_attempt).values(_new_values(expressions)))


def set_output_sizes(session: Session, job: Job, *, log_bytes: int | None, artifact_bytes: int | None) -> None:
    """Record the output sizes of the job's current attempt, in the transaction that closes it."""
    if log_bytes is not None and job.attempt > 1:
        earlier = select(func.sum(Attempt.log_bytes)).where(Attempt.job_id == job.id, Attempt.attempt < job.attempt)
        log_bytes = max(0, log_bytes - int(session.scalar(earlier) or 0))
    update_attempt(session, job, log_bytes=log_bytes, artifact_bytes=artifact_bytes)


def add_event(  # noqa: PLR0913 - the columns of one event
    session: Session,
    job: Job,
    kind: str,
    at: datetime | None = None,  # None: now
    /,
    *,
    from_state: JobState | None = None,
    to_state: JobState | None = None,
    phase: str | None = None,
    reason: str | None = None,
    detail: str | None = None,
    actor: str | None = None,
) -> None:
    """Add an event of the job; `actor` is the id of the API key of the person who caused it."""
    time = {} if at is None else {"at": at}
    notifies = kind in _NOTIFYING or phase == WAITING_PHASE
    ids = (job.id, job.array_id, job.project_id, job.submitted_by)
    subjects = dict(zip(_SUBJECTS, ids, strict=True)) if notifies else {}
    _adding_event(notifies=notifies, earlier=bool(time)).execute(
        session,
        time
        | subjects
        | {
            "job_id": job.id,
            "kind": kind,
            "attempt": job.attempt,
            "lease": job.lease,
            "from_state": from_state,
            "to_state": to_state,
            "phase": phase,
            "reason": reason,
            "detail": detail if detail is None else storable_text(detail),
            "actor": actor,
            "address": acting_address() if actor else None,
        },
    )


def record_warning(session: Session, job: Job, detail: str) -> None:
    """Record that a running job was warned before its time is up, or that nothing of it could be."""
    add_event(
        session, update_job(session, job, frozenset({JobState.RUNNING}), heartbeat_at=NOW), "warned", detail=detail
    )


def add_submitted_events(session: Session, jobs: Sequence[Job], address: str | None) -> None:
    rows = ({"job_id": job.id, "actor": job.submitted_by, "address": address} for job in jobs)
    _ADD_SUBMITTED_EVENT.execute(session, *rows)


def enqueue_wake(session: Session, job: Job) -> None:
    enqueue_wakes(session, [job])


def enqueue_wakes(session: Session, jobs: Sequence[Job]) -> None:
    _ENQUEUE_WAKE.execute(session, *({"job_id": job.id} for job in jobs))
