"""What there is now, in numbers, for whoever watches over the service.

Everything here is read from the record and costs the same however many jobs have ended: jobs that are not over are
found by the index on their state. What ended is counted by `core.jobs.following`.
"""

from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime

from sqlalchemy import case, func, select
from sqlalchemy.orm import Session

from core.db import now
from core.jobs.models import HeldCard, Job, Outbox, Repair, Worker
from core.jobs.queries import WORKER_SILENT_SECONDS
from core.jobs.states import TERMINAL, JobState

WORKER_FORGOTTEN_SECONDS = 24 * 3600
"""A worker that was not seen for this long was taken away; until then it is missed."""
DEAF_SECONDS = 180
"""A worker with a broker sends itself messages far more often, and restarts sooner if it hears none."""

# Named one by one: "not ended" would be no search in the index on the state.
_LIVE = [state for state in JobState if state not in TERMINAL]
_waits_since = func.coalesce(Job.run_after, Job.created_at)
_is_silent = (Job.state != JobState.QUEUED) & (Job.heartbeat_at < now(-WORKER_SILENT_SECONDS))
_of_one_kind = (Job.state, Job.backend, Job.machine_type, Job.worker)
_JOBS = (
    select(
        *_of_one_kind,
        func.count().label("jobs"),
        func.min(_waits_since).label("since"),
        func.sum(case((_is_silent, 1), else_=0)).label("silent"),
    )
    .where(Job.state.in_(_LIVE))
    .group_by(*_of_one_kind)
)
_WORKERS = select(Worker).where(Worker.seen_at >= now(-WORKER_FORGOTTEN_SECONDS)).order_by(Worker.name)
_OUTBOX = select(now().label("at"), func.count(Outbox.id).label("messages"), func.min(Outbox.created_at).label("since"))
_CARDS = select(HeldCard.host, func.count().label("cards")).group_by(HeldCard.host)
_REPAIRS = select(Repair).order_by(Repair.kind)

Pool = tuple[str, str]
"""Backend and machine type: jobs that wait for the same machines."""


@dataclass(frozen=True, slots=True)
class Presence:
    """A worker.

    Attributes:
        slots: Jobs it takes at once.
        held: Jobs it holds now.
        machine_types: Those it takes; None: all that its backends run.
        cards: Its host's cards; None: they are not counted.
        seen: Seconds since it was last seen.
        heard: Seconds since a message last reached it through the broker; None: none ever did.
        drained: Since how many seconds it claims nothing, by an administrator's wish; None: it claims.
    """

    name: str
    host: str
    backends: tuple[str, ...]
    slots: int
    held: int
    machine_types: tuple[str, ...] | None = None
    cards: int | None = None
    seen: float = field(default=0.0, compare=False)
    heard: float | None = field(default=None, compare=False)
    drained: float | None = field(default=None, compare=False)

    @property
    def silent(self) -> bool:
        """Whether it should have been seen since."""
        return self.seen > WORKER_SILENT_SECONDS

    @property
    def deaf(self) -> bool:
        """Whether messages no longer reach it, though it is there."""
        return not self.silent and self.heard is not None and self.heard > DEAF_SECONDS

    def takes(self, pool: Pool) -> bool:
        """Whether it takes new jobs of this pool, when it has room."""
        backend, machine_type = pool
        able = backend in self.backends and (self.machine_types is None or machine_type in self.machine_types)
        return able and not self.silent and self.drained is None


@dataclass(frozen=True, slots=True)
class Repaired:
    """How often the sweep repaired one kind of damage; when it last did, in seconds before now, and which worker's."""

    kind: str
    total: int
    last: float
    worker: str


@dataclass(slots=True)
class Census:
    """What there is at one moment.

    Attributes:
        jobs: Jobs that are not over, by state, backend and machine type.
        silent: Jobs that a worker holds whose heart does not beat, by backend and machine type.
        oldest_queued: How long the job has waited that has waited longest, by backend and machine type, in seconds.
            One that is tried again has waited since it was due.
        workers: Those that were seen lately.
        missed: Those that were not, but in the last day.
        cards: Cards that jobs hold, by host.
        repairs: What the sweeps repaired.
        outbox: Messages that are not sent yet.
        oldest_message: Age of the oldest of them, in seconds; 0 if there is none.
    """

    jobs: Counter[tuple[JobState, str, str]] = field(default_factory=Counter)
    silent: Counter[Pool] = field(default_factory=Counter)
    oldest_queued: dict[Pool, float] = field(default_factory=dict)
    workers: list[Presence] = field(default_factory=list)
    missed: list[Presence] = field(default_factory=list)
    cards: Counter[str] = field(default_factory=Counter)
    repairs: list[Repaired] = field(default_factory=list)
    outbox: int = 0
    oldest_message: float = 0.0

    @property
    def pools(self) -> list[Pool]:
        """Those that jobs are in which are not over, and those that workers name."""
        named = {
            (backend, name)
            for worker in self.workers
            for backend in worker.backends
            for name in worker.machine_types or ()
        }
        return sorted(named | {(backend, machine_type) for _, backend, machine_type in self.jobs})

    def waiting(self, pool: Pool) -> int:
        """Jobs that wait in a pool."""
        return self.jobs[(JobState.QUEUED, *pool)]

    def takers(self, pool: Pool) -> int:
        """Workers that take jobs of a pool."""
        return sum(worker.takes(pool) for worker in self.workers)


def take(session: Session) -> Census:
    """Count what there is, in five queries."""
    outbox = session.execute(_OUTBOX).one()
    census = Census(outbox=outbox.messages, oldest_message=_age(outbox.at, outbox.since))
    held: Counter[str] = Counter()
    for row in session.execute(_JOBS):
        pool = (row.backend, row.machine_type)
        census.jobs[(row.state, *pool)] += row.jobs
        if row.state is JobState.QUEUED:
            known = census.oldest_queued.get(pool, 0.0)
            census.oldest_queued[pool] = max(known, _age(outbox.at, row.since))
        elif row.worker is not None:
            held[row.worker] += row.jobs
            census.silent[pool] += int(row.silent)
    for worker in session.scalars(_WORKERS):
        one = _presence(worker, held[worker.name], outbox.at)
        (census.missed if one.silent else census.workers).append(one)
    census.cards = Counter({row.host: row.cards for row in session.execute(_CARDS)})
    census.repairs = [
        Repaired(row.kind, row.total, _age(outbox.at, row.last_at), row.last_worker)
        for row in session.scalars(_REPAIRS)
    ]
    return census


def _presence(worker: Worker, held: int, at: datetime) -> Presence:
    return Presence(
        name=worker.name,
        host=worker.host,
        backends=tuple(worker.backends),
        slots=worker.slots,
        held=held,
        machine_types=None if worker.machine_types is None else tuple(worker.machine_types),
        cards=None if worker.cards is None else len(worker.cards),
        seen=_age(at, worker.seen_at),
        heard=None if worker.heard_at is None else _age(at, worker.heard_at),
        drained=None if worker.drained_at is None else _age(at, worker.drained_at),
    )


def _age(at: datetime, since: datetime | None) -> float:
    return max(0.0, (at - since).total_seconds()) if since is not None else 0.0
