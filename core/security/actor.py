"""The actor behind what this thread or task does, and the record: events of jobs, and rows of all other changes."""

from collections import deque
from contextvars import ContextVar
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import Select, insert, null, select
from sqlalchemy.orm import InstrumentedAttribute, Session

from core.db.database import now
from core.db.models.changes import Change
from core.db.models.credentials import ApiKey, User, UserKey
from core.db.models.jobs import Event

SECRETS_USED = "secrets_used"  # kind of the event of a job that was given the values of secrets


class Unwritten(NamedTuple):
    """A row that is not worth a transaction of its own: a refusal, or the read of something in a project."""

    kind: str
    target: str
    result: str | None = None
    key_id: str | None = None
    address: str | None = None
    project_id: str | None = None


class Actor(NamedTuple):
    key_id: str | None = None
    address: str | None = None  # of the client
    reads: "deque[Unwritten] | None" = None  # takes what is read; None: that is not recorded


_NOBODY = Actor()
_actor: ContextVar[Actor] = ContextVar("actor", default=_NOBODY)


def act_as(actor: Actor) -> None:
    """Take what this thread or task does from now on as done by this actor."""
    _actor.set(actor)


def acting_key() -> str | None:
    """Return the id of the API key with which this is done; None: no person's, or gradient-server."""
    return _actor.get().key_id


def acting_address() -> str | None:
    return _actor.get().address


def record_change(session: Session, kind: str, target: str) -> None:
    """Record a change to what is not a job, in its own transaction."""
    row = {"at": now(), "actor": acting_key(), "address": acting_address(), "kind": kind, "target": target}
    session.execute(insert(Change).values(row))


def record_read(project_id: str, target: str) -> None:
    """Record that the caller of this request read something, if its project is closed; written later."""
    actor = _actor.get()
    if actor.reads is not None:
        actor.reads.append(Unwritten("read", target, None, actor.key_id, actor.address, project_id))


class Action(NamedTuple):
    """Something that a person did, to a job or to something else, or was refused."""

    at: datetime
    key_id: str | None
    key_name: str | None
    user: str | None  # address of the user whose key it is
    address: str | None
    kind: str
    target: str
    detail: str | None
    result: str | None  # name of the error with which it was refused; None: it was done


def actions(session: Session, since: datetime, *, key_id: str | None = None, most: int | None = None) -> list[Action]:
    """Return what people did to jobs and changed elsewhere, oldest first; `most`: only the newest so many."""
    of_jobs = _rows(Event, Event.job_id, Event.detail, null()).where(Event.actor.is_not(None))
    others = _rows(Change, Change.target, null(), Change.result)
    rows: list[Action] = []
    for table, query in ((Event, of_jobs), (Change, others)):
        of_key = () if key_id is None else (table.actor == key_id,)
        newest = query.where(table.at >= since, *of_key).order_by(table.id.desc()).limit(most)
        rows += (Action(*row) for row in session.execute(newest).all()[::-1])
    return sorted(rows, key=lambda action: action.at)[-(most or 0) :]


def _rows(table: type[Event] | type[Change], *target: InstrumentedAttribute[Any] | Any) -> Select[Any]:  # noqa: ANN401 - expressions
    return (
        select(table.at, table.actor, ApiKey.name, User.email, table.address, table.kind, *target)
        .outerjoin(ApiKey, ApiKey.id == table.actor)
        .outerjoin(UserKey, UserKey.key_id == table.actor)
        .outerjoin(User, User.id == UserKey.user_id)
    )
