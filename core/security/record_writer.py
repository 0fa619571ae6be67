"""Refusals, and reads in closed projects: written to the record a second later, together, once in ten minutes each."""

import logging
from collections import deque

from cachetools import TTLCache
from sqlalchemy import delete, insert, select

from core.db.database import Base, Database, now
from core.db.models.changes import Change
from core.db.models.jobs import Project
from core.errors import StoreUnavailable
from core.security.actor import Unwritten
from core.settings.limits import RetentionSettings
from core.storage.retention import DAY_SECONDS

logger = logging.getLogger(__name__)

_CHANGES = Base.metadata.tables[Change.__tablename__]
_MOST = 10_000  # rows that wait at most: the oldest are lost, and the log says so
_REPEATED_SECONDS = 600.0  # pages ask again every few seconds


class RecordWriter:
    def __init__(self, database: Database, settings: RetentionSettings) -> None:
        self._database = database
        self._settings = settings
        self._recent: TTLCache[Unwritten, None] = TTLCache(_MOST, _REPEATED_SECONDS)
        self.unwritten: deque[Unwritten] = deque(maxlen=_MOST)

    @property
    def reads(self) -> deque[Unwritten] | None:
        """The queue of reads; None: they are not to be recorded."""
        return self.unwritten if self._settings.record_reads else None

    def write(self) -> int:
        """Write what waits; returns the number of rows."""
        waiting = [self.unwritten.popleft() for _ in range(len(self.unwritten))]
        if len(waiting) == _MOST:
            logger.warning("record_incomplete", extra={"lost_at_least": 1})
        new = [row for row in dict.fromkeys(waiting) if row not in self._recent]
        if not new:
            return 0
        try:
            count = self._insert(new)
        except StoreUnavailable:
            self.unwritten.extendleft(reversed(new))
            raise
        self._recent.update(dict.fromkeys(new))
        return count

    def _insert(self, new: list[Unwritten]) -> int:
        with self._database.read() as session:
            closed = set(session.scalars(select(Project.id).where(Project.closed_at.is_not(None))))
        rows = [
            {"actor": row.key_id, **{name: getattr(row, name) for name in ("address", "kind", "target", "result")}}
            for row in new
            if row.project_id is None or row.project_id in closed
        ]
        if rows:
            with self._database.write() as session:
                session.execute(insert(_CHANGES).values(at=now()), rows)
        return len(rows)

    def remove_old(self) -> None:
        if self._settings.record_days is not None:
            with self._database.write() as session:
                session.execute(delete(Change).where(Change.at < now(-self._settings.record_days * DAY_SECONDS)))
