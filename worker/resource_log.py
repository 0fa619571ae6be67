"""The record of billed cloud resources in the database."""

from datetime import UTC
from typing import Any

from sqlalchemy import ColumnElement, exists, or_, select, update
from sqlalchemy.orm import Session

from core.db.database import Database, now
from core.db.models.jobs import Job
from core.db.schema import SchemaInfo
from core.ids import new_id
from core.jobs.cloud_resources import Resource
from core.jobs.states import OWNED
from core.jobs.transitions import insert_once
from worker.backends.tpu.resource_log import Entry

_INSTALLATION = "installation"
_THERE = Resource.gone_at.is_(None)
_IN_USE = _THERE & Resource.deleting_at.is_(None)


class DatabaseLedger:
    """Implements `Ledger` on the database; each call is its own transaction.

    Args:
        database: The database.
        host: This machine's name.
    """

    def __init__(self, database: Database, host: str) -> None:
        self._database = database
        self._host = host
        self._installation: str | None = None

    def installation(self) -> str:
        """See `Ledger.installation`: it tells this database's resources from others' in the same cloud project."""
        if self._installation is None:
            with self._database.write() as session:
                made = insert_once(session.get_bind().dialect.name, SchemaInfo)
                session.execute(made.values(name=_INSTALLATION, value=new_id("g")))
                named = select(SchemaInfo.value).where(SchemaInfo.name == _INSTALLATION)
                self._installation = session.scalars(named).one()
        return self._installation

    def intend(self, kind: str, name: str, *, job_id: str, attempt: int) -> Entry | None:
        """See `Ledger.intend`."""
        with self._database.write() as session:
            made = insert_once(session.get_bind().dialect.name, Resource).values(
                kind=kind,
                name=name,
                job_id=job_id,
                attempt=attempt,
                host=self._host,
                state="intended",
                intended_at=now(),
            )
            session.execute(made)
            held = _entries(session, _THERE, Resource.name == name)
        return next((one for one in held if (one.job_id, one.attempt) == (job_id, attempt)), None)

    def note(
        self,
        entry: Entry,
        *,
        state: str,
        health: str | None = None,
        detail: str | None = None,
        operation: str | None = None,
        bills: bool = False,
    ) -> None:
        """See `Ledger.note`."""
        with self._database.write() as session:
            _update(
                session, entry, _IN_USE, seen_at=now(), state=state, health=health, detail=detail, operation=operation
            )
            if bills:
                _update(session, entry, Resource.billed_at.is_(None), billed_at=now())

    def close(self, entry: Entry, *, gone: bool, detail: str | None = None) -> None:
        """See `Ledger.close`."""
        with self._database.write() as session:
            if gone:
                _update(session, entry, _THERE, gone_at=now(), state="gone", detail=detail)
            else:
                _update(
                    session, entry, Resource.deleting_at.is_(None), deleting_at=now(), state="deleting", detail=detail
                )

    def of_attempt(self, job_id: str, attempt: int) -> list[Entry]:
        """See `Ledger.of_attempt`."""
        return self._list(Resource.job_id == job_id, Resource.attempt == attempt)

    def here(self) -> list[Entry]:
        """See `Ledger.here`."""
        return self._list(Resource.host == self._host, _IN_USE)

    def unowned(self) -> list[Entry]:
        """See `Ledger.unowned`."""
        owned = exists().where(Job.id == Resource.job_id, Job.attempt == Resource.attempt, Job.state.in_(OWNED))
        return self._list(_THERE, or_(~owned, Resource.deleting_at.is_not(None)))

    def _list(self, *conditions: ColumnElement[bool]) -> list[Entry]:
        with self._database.read() as session:
            return _entries(session, *conditions)


def _update(session: Session, entry: Entry, condition: ColumnElement[bool], **values: Any) -> None:  # noqa: ANN401 - column values
    """Write these values to the entry's row if it meets the condition; None leaves a column as it is."""
    known = {name: value for name, value in values.items() if value is not None}
    session.execute(update(Resource).where(Resource.id == entry.id, condition).values(**known))


def _entries(session: Session, *conditions: ColumnElement[bool]) -> list[Entry]:
    """Return the entries that meet all conditions, oldest first."""
    current = session.scalars(select(now())).one().astimezone(UTC)
    return [
        Entry(
            id=row.id,
            kind=row.kind,
            name=row.name,
            job_id=row.job_id,
            attempt=row.attempt,
            operation=row.operation,
            age=(current - row.intended_at).total_seconds(),
            over=row.gone_at is not None or row.deleting_at is not None,
        )
        for row in session.scalars(select(Resource).where(*conditions).order_by(Resource.id))
    ]
