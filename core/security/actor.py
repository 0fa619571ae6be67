"""The API key behind what this thread or task does, for the events of jobs and the record of all other changes."""

from contextvars import ContextVar
from datetime import datetime
from typing import NamedTuple

from sqlalchemy import insert, null, select
from sqlalchemy.orm import Session

from core.db.database import now
from core.db.models.changes import Change
from core.db.models.credentials import ApiKey
from core.db.models.jobs import Event

_key_id: ContextVar[str | None] = ContextVar("acting_key", default=None)


def act_as(key_id: str | None) -> None:
    """Take what this thread or task does from now on as done with this API key; None: with none."""
    _key_id.set(key_id)


def acting_key() -> str | None:
    """Return the id of the API key with which this is done; None: no person's, or gradient-server."""
    return _key_id.get()


def record_change(session: Session, kind: str, target: str) -> None:
    """Record a change to what is not a job, in its own transaction."""
    session.execute(insert(Change).values(at=now(), actor=acting_key(), kind=kind, target=target))


class Action(NamedTuple):
    """Something that a person did, to a job or to something else."""

    at: datetime
    key_id: str | None
    key_name: str | None
    kind: str
    target: str
    detail: str | None


def actions_since(session: Session, since: datetime) -> list[Action]:
    """Return what people did to jobs and changed elsewhere, oldest first."""
    on_jobs = (
        select(Event.at, Event.actor, ApiKey.name, Event.kind, Event.job_id, Event.detail)
        .outerjoin(ApiKey, ApiKey.id == Event.actor)
        .where(Event.actor.is_not(None), Event.at >= since)
        .order_by(Event.id)
    )
    others = (
        select(Change.at, Change.actor, ApiKey.name, Change.kind, Change.target, null())
        .outerjoin(ApiKey, ApiKey.id == Change.actor)
        .where(Change.at >= since)
        .order_by(Change.id)
    )
    actions = [Action(*row) for query in (on_jobs, others) for row in session.execute(query)]
    return sorted(actions, key=lambda action: action.at)
