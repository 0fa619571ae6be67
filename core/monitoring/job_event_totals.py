"""Counts job events incrementally, for monitoring.

The cost depends on the events since the last poll, not on the number of jobs that have ended.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

from sqlalchemy import Row, bindparam, func, select
from sqlalchemy.orm import Session

from core.db.database import now
from core.db.models.jobs import Attempt, Event, Job
from core.monitoring.snapshot import Pool

SETTLED_SECONDS = 60  # after this time no transaction with a lower event id is still open: statements end after 15 s
MAX_EVENTS = 100_000  # events read per poll; a reader that is far behind catches up over several polls

_CLAIMED, _REQUEUED, _FINISHED = "claimed", "requeued", "finished"
_NEWEST_EVENT = select(func.coalesce(func.max(Event.id), 0))
_ID_RANGE = Event.id.between(bindparam("first"), bindparam("last"))
_of_event = (Attempt.job_id == Event.job_id) & (Attempt.attempt == Event.attempt)
_EVENTS = (
    select(
        Event.id,
        Event.kind,
        Event.to_state,
        Job.backend,
        Job.machine_type,
        Attempt.eligible_at,
        Attempt.claimed_at,
        Attempt.log_bytes,
        Attempt.artifact_bytes,
    )
    .join(Job, Job.id == Event.job_id)
    .outerjoin(Attempt, _of_event)
    .where(_ID_RANGE, Event.kind.in_([_CLAIMED, _REQUEUED, _FINISHED]))
)
# Newest first, so that reading ends at the first one that is old enough.
_SETTLED = select(Event.id).where(_ID_RANGE, Event.at < now(-SETTLED_SECONDS)).order_by(Event.id.desc()).limit(1)


@dataclass(slots=True)
class EventTotals:
    """Event counts between two polls."""

    ended: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    # for each claim its pool (backend, machine type), and the seconds since the job was due
    claims: list[tuple[Pool, float]] = field(default_factory=list)
    log_bytes: int = 0  # bytes of logs kept of attempts that ended
    artifact_bytes: int = 0  # bytes of artifacts kept of them


class EventCounter:
    """Counts events since the previous poll; counting starts with the first poll.

    Event ids are assigned before their transactions commit, so the newest events are read again until no lower id can
    appear; each event is counted once.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._settled: int | None = None
        self._counted: set[int] = set()

    def poll(self, session: Session) -> EventTotals:
        with self._lock:
            if self._settled is None:
                self._start_at_newest(session)
                return EventTotals()
            id_range = {"first": self._settled + 1, "last": self._settled + MAX_EVENTS}
            # Queried first: below an id that is settled now, no event can appear while the rest is read.
            settled = session.scalar(_SETTLED, id_range)
            events = [row for row in session.execute(_EVENTS, id_range) if row.id not in self._counted]
            self._settled = settled or self._settled
            self._counted = {id_ for id_ in self._counted | {row.id for row in events} if id_ > self._settled}
            return _total(events)

    def _start_at_newest(self, session: Session) -> None:
        newest = session.scalar(_NEWEST_EVENT) or 0
        self._settled = session.scalar(_SETTLED, {"first": 0, "last": newest}) or 0
        id_range = {"first": self._settled + 1, "last": newest}
        self._counted = {row.id for row in session.execute(_EVENTS, id_range)}


def _total(rows: Iterable[Row[*tuple[Any, ...]]]) -> EventTotals:
    totals = EventTotals()
    for row in rows:
        if row.kind == _CLAIMED:
            totals.claims += _claim_wait(row)
            continue
        if row.kind == _FINISHED:
            totals.ended[row.to_state, row.backend, row.machine_type] += 1
        totals.log_bytes += row.log_bytes or 0
        totals.artifact_bytes += row.artifact_bytes or 0
    return totals


def _claim_wait(row: Row[*tuple[Any, ...]]) -> Iterator[tuple[Pool, float]]:
    if row.eligible_at is not None and row.claimed_at is not None:
        yield (row.backend, row.machine_type), max(0.0, (row.claimed_at - row.eligible_at).total_seconds())
