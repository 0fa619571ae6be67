"""Records cloud resources that cost money, in the database."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import TypeVar

from sqlalchemy import select
from sqlalchemy.orm import Session

from core.db import Database, now
from core.jobs import resources
from core.jobs.resources import Resource
from worker.backends.tpu.ledger import Entry

T = TypeVar("T")


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
        """See `Ledger.installation`."""
        if self._installation is None:
            self._installation = self._write(resources.installation)
        return self._installation

    def intend(self, kind: str, name: str, *, job_id: str, attempt: int) -> Entry | None:
        """See `Ledger.intend`."""

        def write(session: Session) -> Entry | None:
            row = resources.intend(session, kind, name, job_id=job_id, attempt=attempt, host=self._host)
            return None if row is None else entry_of(row, _current(session))

        return self._write(write)

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
        known = {"health": health, "detail": detail, "operation": operation}
        values = {"state": state} | {name: value for name, value in known.items() if value is not None}

        def write(session: Session) -> None:
            resources.note(session, entry.id, **values)
            if bills:
                resources.billing(session, entry.id)

        self._write(write)

    def close(self, entry: Entry, *, gone: bool, detail: str | None = None) -> None:
        """See `Ledger.close`."""

        def write(session: Session) -> None:
            if not gone:
                resources.deleting(session, entry.id, detail)
            else:
                resources.gone(session, entry.id, detail)

        self._write(write)

    def of_attempt(self, job_id: str, attempt: int) -> list[Entry]:
        """See `Ledger.of_attempt`."""
        return self._read(lambda session: resources.of_attempt(session, job_id, attempt))

    def here(self) -> list[Entry]:
        """See `Ledger.here`."""
        return self._read(lambda session: resources.open_on(session, self._host))

    def unowned(self) -> list[Entry]:
        """See `Ledger.unowned`."""
        return self._read(resources.unowned)

    def _write(self, action: Callable[[Session], T]) -> T:
        with self._database.write() as session:
            return action(session)

    def _read(self, look: Callable[[Session], list[Resource]]) -> list[Entry]:
        with self._database.read() as session:
            current = _current(session)
            return [entry_of(row, current) for row in look(session)]


def _current(session: Session) -> datetime:
    return session.scalars(select(now())).one().astimezone(UTC)


def entry_of(row: Resource, current: datetime) -> Entry:
    """Convert a row to the entry that backends use."""
    return Entry(
        id=row.id,
        kind=row.kind,
        name=row.name,
        job_id=row.job_id,
        attempt=row.attempt,
        operation=row.operation,
        age=(current - row.intended_at).total_seconds(),
        over=row.gone_at is not None or row.deleting_at is not None,
    )
