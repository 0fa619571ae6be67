"""The rows that jobs are created from: schedules and sweeps."""

from typing import TypeVar

from sqlalchemy import ColumnElement, SQLColumnExpression, String, cast, func, literal, select, true
from sqlalchemy import delete as delete_rows
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from core.db.models.comparisons import Comparison
from core.db.models.notifications import NotificationRule
from core.db.models.schedules import Schedule
from core.db.models.sweeps import Sweep
from core.errors import CursorInvalid, IdempotencyMismatch, ScheduleNotFound, StoreUnavailable, SweepNotFound
from core.jobs.spec.dependencies import parse_inputs
from core.security.actor import record_change
from core.security.visibility import seeing_everything

T = TypeVar("T", Schedule, Sweep)
Created = TypeVar("Created", Schedule, Sweep, Comparison)
_TABLES: tuple[type[Schedule] | type[Sweep], ...] = (Schedule, Sweep)


def get(table: type[T], session: Session, template_id: str, *, lock: bool = False) -> T:
    query = select(table).where(table.id == template_id)
    template = session.scalar(query.with_for_update() if lock else query)
    if template is None:
        raise (ScheduleNotFound if table is Schedule else SweepNotFound)(template_id)
    return template


def shown_name(table: type[Schedule] | type[Sweep]) -> SQLColumnExpression[str]:
    """Return the SQL expression of a name, in lower case; without one it is the kind with its number."""
    given = func.nullif(table.spec_json["name"].as_string(), "")
    return func.lower(func.coalesce(given, literal(f"{_noun(table)} ") + cast(table.seq, String)))


def page(session: Session, table: type[T], *, limit: int, after: str | None) -> tuple[list[T], str | None]:
    """Return rows, newest first, and the id that the next page comes after; `after`: that of the page before."""
    query = select(table).order_by(table.seq.desc()).limit(limit + 1)
    if after is not None:
        seq = session.scalar(select(table.seq).where(table.id == after))
        if seq is None:
            raise CursorInvalid(
                f"The {_noun(table)} that this page should follow does not exist. Start with the first page."
            )
        query = query.where(table.seq < seq)
    templates = list(session.scalars(query))
    return templates[:limit], templates[limit - 1].id if len(templates) > limit else None


@seeing_everything()
def find_repeated(session: Session, new: Created) -> Created | None:
    """Return the row that an earlier request with the same Idempotency-Key created."""
    if new.idempotency_key is None:
        return None
    table = type(new)
    query = select(table).where(table.submitted_by == new.submitted_by, table.idempotency_key == new.idempotency_key)
    row = session.scalar(query)
    if row is not None and row.request_sha256 != new.request_sha256:
        raise IdempotencyMismatch(
            f"The Idempotency-Key was used for {_noun(table)} {row.id}, with a different request. Use a new key."
        )
    return row


def insert(session: Session, new: Schedule | Sweep) -> None:
    session.add(new)
    record_change(session, f"{_noun(type(new))}_created", new.id)
    try:
        session.flush()
    except IntegrityError as error:
        noun = _noun(type(new))
        raise StoreUnavailable(f"The same {noun} is being created by another request. Try again.") from error


def delete(table: type[T], session: Session, template_id: str) -> None:
    """Delete a row; its jobs stay, and go on."""
    session.delete(get(table, session, template_id, lock=True))
    session.execute(delete_rows(NotificationRule).where(NotificationRule.subject == template_id))
    record_change(session, f"{_noun(table)}_deleted", template_id)
    session.flush()


def _noun(table: type[Schedule] | type[Sweep] | type[Comparison]) -> str:
    return table.__name__.lower()


def _creating(table: type[Schedule] | type[Sweep]) -> ColumnElement[bool]:
    """Return the condition that a row may still create jobs."""
    return Sweep.state.in_(("running", "paused")) if table is Sweep else true()


def count_of_project(session: Session, project_id: str) -> int:
    counts = [select(func.count()).where(table.project_id == project_id, _creating(table)) for table in _TABLES]
    return sum(session.scalar(count) or 0 for count in counts)


def needed_workspaces(session: Session) -> set[str]:
    """Return the digests of the workspaces that schedules and sweeps need."""
    named = (select(table.spec_json["workspace_sha256"].as_string()).where(_creating(table)) for table in _TABLES)
    return {sha256 for query in named for sha256 in session.scalars(query) if sha256}


def needed_jobs(session: Session) -> set[str]:
    """Return the ids of the jobs whose artifacts schedules and sweeps need."""
    specs = (spec for table in _TABLES for spec in session.scalars(select(table.spec_json).where(_creating(table))))
    return {job_input.job_id for spec in specs for job_input in parse_inputs(spec["inputs"])}
