"""Locks of PostgreSQL for what is done one at a time: rows that a worker which has joined cannot lock.

Everybody who may connect can hold an advisory lock.
"""

from sqlalchemy import bindparam, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from core.db.database import now
from core.db.models.jobs import LeaderLease
from core.db.prepared import Prepared

_LOCK = Prepared(select(LeaderLease.name).where(LeaderLease.name == bindparam("turn")).with_for_update())


def take_turn(session: Session, name: str) -> None:
    """Wait for the others that take turns under this name; none goes on until the transaction ends."""
    if session.get_bind().dialect.name != "postgresql":  # SQLite has only one writer at a time anyway
        return
    if not _LOCK.rows(session, {"turn": name}):
        session.execute(insert(LeaderLease).values(name=name, holder="", until=now()).on_conflict_do_nothing())
        _LOCK.execute(session, {"turn": name})
