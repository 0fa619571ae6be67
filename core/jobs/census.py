"""What there is now, in numbers, for whoever watches over the service.

Everything here is read from the record and costs the same however many jobs have ended: jobs that are not over are
found by the index on their state, and jobs that ended are counted as they end, by following the events.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from threading import Lock

from sqlalchemy import bindparam, func, select
from sqlalchemy.orm import Session

from core.db import now
from core.jobs.models import Event, Job, Outbox, Worker
from core.jobs.queries import WORKER_SILENT_SECONDS
from core.jobs.states import TERMINAL, JobState

SETTLED_SECONDS = 60
"""After this time no transaction that took an earlier event's number is still open: statements end after 15 s."""
MOST_EVENTS = 100_000
"""Events looked through at once; a reader that was away for long catches up over several looks."""

# Named one by one: "not ended" would be no search in the index on the state.
_LIVE = [state for state in JobState if state not in TERMINAL]
_waits_since = func.coalesce(Job.run_after, Job.created_at)
_JOBS = (
    select(Job.state, Job.backend, Job.worker, func.count().label("jobs"), func.min(_waits_since).label("since"))
    .where(Job.state.in_(_LIVE))
    .group_by(Job.state, Job.backend, Job.worker)
)
_WORKERS = select(Worker).where(Worker.seen_at >= now(-WORKER_SILENT_SECONDS)).order_by(Worker.name)
_OUTBOX = select(now().label("at"), func.count(Outbox.id).label("messages"), func.min(Outbox.created_at).label("since"))
_NEWEST_EVENT = select(func.coalesce(func.max(Event.id), 0))
_STRETCH = Event.id.between(bindparam("first"), bindparam("last"))
_ENDINGS = (
    select(Event.id, Event.to_state, Job.backend)
    .join(Job, Job.id == Event.job_id)
    .where(_STRETCH, Event.kind == "finished")
)
# From the newest on, so that what is read ends at the first one that is old enough.
_SETTLED = select(Event.id).where(_STRETCH, Event.at < now(-SETTLED_SECONDS)).order_by(Event.id.desc()).limit(1)


@dataclass(frozen=True, slots=True)
class Presence:
    """A worker that was seen lately.

    Attributes:
        slots: Jobs it takes at once.
        held: Jobs it holds now.
    """

    name: str
    host: str
    backends: tuple[str, ...]
    slots: int
    held: int


@dataclass(slots=True)
class Census:
    """What there is at one moment.

    Attributes:
        jobs: Jobs that are not over, by state and backend.
        oldest_queued: How long the job has waited that has waited longest, by backend, in seconds. One that is
            tried again has waited since it was due.
        workers: Those that were seen lately.
        outbox: Messages that are not sent yet.
        oldest_message: Age of the oldest of them, in seconds; 0 if there is none.
    """

    jobs: Counter[tuple[JobState, str]] = field(default_factory=Counter)
    oldest_queued: dict[str, float] = field(default_factory=dict)
    workers: list[Presence] = field(default_factory=list)
    outbox: int = 0
    oldest_message: float = 0.0


def take(session: Session) -> Census:
    """Count what there is, in three queries."""
    outbox = session.execute(_OUTBOX).one()
    census = Census(outbox=outbox.messages, oldest_message=_age(outbox.at, outbox.since))
    held: Counter[str] = Counter()
    for row in session.execute(_JOBS):
        census.jobs[row.state, row.backend] += row.jobs
        if row.state is JobState.QUEUED:
            known = census.oldest_queued.get(row.backend, 0.0)
            census.oldest_queued[row.backend] = max(known, _age(outbox.at, row.since))
        elif row.worker is not None:
            held[row.worker] += row.jobs
    census.workers = [
        Presence(worker.name, worker.host, tuple(worker.backends), worker.slots, held[worker.name])
        for worker in session.scalars(_WORKERS)
    ]
    return census


class Endings:
    """Counts jobs as they end, by state and backend, by following the record's events.

    It begins with the first look. Numbers of events are given out before their transactions are committed, so the
    newest events are looked at again until nothing can come before them; each is counted once.

    Args:
        count: Called with state, backend and number for jobs that ended since the look before.
    """

    def __init__(self, count: Callable[[str, str, int], None]) -> None:
        self._count = count
        self._lock = Lock()
        self._settled: int | None = None
        self._counted: set[int] = set()

    def look(self, session: Session) -> None:
        """Count what ended since the last look."""
        with self._lock:
            if self._settled is None:
                self._begin(session)
                return
            stretch = {"first": self._settled + 1, "last": self._settled + MOST_EVENTS}
            # Asked first: what is settled now cannot gain an event before it while the endings are read.
            settled = session.scalar(_SETTLED, stretch)
            found = [row for row in session.execute(_ENDINGS, stretch) if row.id not in self._counted]
            for (state, backend), number in Counter((row.to_state, row.backend) for row in found).items():
                self._count(state, backend, number)
            self._settled = settled or self._settled
            self._counted = {id_ for id_ in self._counted | {row.id for row in found} if id_ > self._settled}

    def _begin(self, session: Session) -> None:
        """Take what there is as counted."""
        newest = session.scalar(_NEWEST_EVENT) or 0
        self._settled = session.scalar(_SETTLED, {"first": 0, "last": newest}) or 0
        stretch = {"first": self._settled + 1, "last": newest}
        self._counted = {row.id for row in session.execute(_ENDINGS, stretch)}


def _age(at: datetime, since: datetime | None) -> float:
    return max(0.0, (at - since).total_seconds()) if since is not None else 0.0
