"""A snapshot of jobs, queues and workers for monitoring.

Everything is read from the database, at a cost that does not depend on the number of ended jobs: those that workers
hold are found by the index on the state, and waiting ones are counted in an index that has all columns of the count.
Jobs that end are counted by `core.monitoring.job_event_totals`.
"""

from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime

from sqlalchemy import case, func, select
from sqlalchemy.orm import Session

from core.db.database import now
from core.db.models.jobs import IS_COUNTED_QUEUED, GpuAllocation, Job, Outbox, RepairCount, Worker
from core.jobs.queries import WORKER_STALE_SECONDS
from core.jobs.states import OWNED, JobState

WORKER_FORGOTTEN_SECONDS = 24 * 3600  # a worker not seen for this long counts as removed; until then, as missing

_pool = (Job.machine_type, Job.backend)
_waits_since = func.coalesce(Job.run_after, Job.created_at)
_WAITING = (
    select(*_pool, func.count().label("jobs"), func.min(_waits_since).label("since"))
    .where(IS_COUNTED_QUEUED)
    .group_by(*_pool)
)
_is_stale = Job.heartbeat_at < now(-WORKER_STALE_SECONDS)
_held_alike = (Job.state, *_pool, Job.worker)
_HELD = (
    select(*_held_alike, func.count().label("jobs"), func.sum(case((_is_stale, 1), else_=0)).label("silent"))
    .where(Job.state.in_(OWNED))
    .group_by(*_held_alike)
)
_WORKERS = select(Worker).where(Worker.seen_at >= now(-WORKER_FORGOTTEN_SECONDS)).order_by(Worker.name)
_OUTBOX = select(now().label("at"), func.count(Outbox.id).label("messages"), func.min(Outbox.created_at).label("since"))
_GPUS = select(GpuAllocation.host, func.count().label("gpus")).group_by(GpuAllocation.host)
_REPAIRS = select(RepairCount).order_by(RepairCount.kind)

Pool = tuple[str, str]  # backend and machine type; jobs of one pool wait for the same machines


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    name: str
    host: str
    backends: tuple[str, ...]
    slots: int  # jobs it runs at once, at most
    held: int
    machine_types: tuple[str, ...] | None = None  # machine types it takes; None: all that its backends run
    gpus: int | None = None  # GPUs of its host; None: not counted
    heartbeat_age: float = field(default=0.0, compare=False)  # seconds since its last heartbeat
    # seconds since an administrator drained it; None: it is not drained
    drained_age: float | None = field(default=None, compare=False)
    refusal: str | None = field(default=None, compare=False)  # why it takes no jobs, or none of one of its backends

    @property
    def is_stale(self) -> bool:
        """True if its last heartbeat is too old."""
        return self.heartbeat_age > WORKER_STALE_SECONDS

    def accepts(self, pool: Pool) -> bool:
        """Return whether it takes new jobs of this pool, given free capacity."""
        backend, machine_type = pool
        able = backend in self.backends and (self.machine_types is None or machine_type in self.machine_types)
        return able and not self.is_stale and self.drained_age is None


@dataclass(frozen=True, slots=True)
class RepairStats:
    """Repairs of one kind by the sweep: their number, seconds since the last one, and the worker that made it."""

    kind: str
    total: int
    last: float
    worker: str


@dataclass(slots=True)
class ServiceSnapshot:
    # jobs that are not over, by state, backend and machine type
    jobs: Counter[tuple[JobState, str, str]] = field(default_factory=Counter)
    # jobs held by a worker without recent heartbeats, by backend and machine type
    stale_jobs: Counter[Pool] = field(default_factory=Counter)
    # Longest wait of a queued job in seconds, by backend and machine type. A retry waits from the time it is due.
    oldest_queued: dict[Pool, float] = field(default_factory=dict)
    workers: list[WorkerStatus] = field(default_factory=list)
    lost_workers: list[WorkerStatus] = field(default_factory=list)  # workers without, that had one in the last day
    gpus: Counter[str] = field(default_factory=Counter)
    repairs: list[RepairStats] = field(default_factory=list)
    outbox: int = 0  # messages not sent yet
    oldest_message: float = 0.0  # age of the oldest of them, in seconds; 0 if there is none

    @property
    def pools(self) -> list[Pool]:
        """The pools of jobs that have not ended, and those that workers name."""
        named = {
            (backend, name)
            for worker in self.workers
            for backend in worker.backends
            for name in worker.machine_types or ()
        }
        return sorted(named | {(backend, machine_type) for _, backend, machine_type in self.jobs})

    def count_waiting(self, pool: Pool) -> int:
        return self.jobs[(JobState.QUEUED, *pool)]

    def count_workers(self, pool: Pool) -> int:
        return sum(worker.accepts(pool) for worker in self.workers)


def collect(session: Session) -> ServiceSnapshot:
    """Take a snapshot, in six queries."""
    outbox = session.execute(_OUTBOX).one()
    snapshot = ServiceSnapshot(outbox=outbox.messages, oldest_message=_age(outbox.at, outbox.since))
    held: Counter[str] = Counter()
    for row in session.execute(_WAITING):
        pool = (row.backend, row.machine_type)
        snapshot.jobs[(JobState.QUEUED, *pool)] = row.jobs
        snapshot.oldest_queued[pool] = _age(outbox.at, row.since)
    for row in session.execute(_HELD):
        pool = (row.backend, row.machine_type)
        snapshot.jobs[(row.state, *pool)] += row.jobs
        if row.worker is not None:
            held[row.worker] += row.jobs
            snapshot.stale_jobs[pool] += int(row.silent)
    for worker in session.scalars(_WORKERS):
        status = _worker_status(worker, held[worker.name], outbox.at)
        (snapshot.lost_workers if status.is_stale else snapshot.workers).append(status)
    snapshot.gpus = Counter({row.host: row.gpus for row in session.execute(_GPUS)})
    snapshot.repairs = [
        RepairStats(row.kind, row.total, _age(outbox.at, row.last_at), row.last_worker)
        for row in session.scalars(_REPAIRS)
    ]
    return snapshot


def _worker_status(worker: Worker, held: int, at: datetime) -> WorkerStatus:
    return WorkerStatus(
        name=worker.name,
        host=worker.host,
        backends=tuple(worker.backends),
        slots=worker.slots,
        held=held,
        machine_types=None if worker.machine_types is None else tuple(worker.machine_types),
        gpus=None if worker.gpus is None else len(worker.gpus),
        heartbeat_age=_age(at, worker.seen_at),
        drained_age=None if worker.drained_at is None else _age(at, worker.drained_at),
        refusal=worker.refusal,
    )


def _age(at: datetime, since: datetime | None) -> float:
    return max(0.0, (at - since).total_seconds()) if since is not None else 0.0
