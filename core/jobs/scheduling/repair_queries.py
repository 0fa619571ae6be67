"""Database operations of the sweep: its lease, repairs of stale rows, and counts of repairs."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime

from sqlalchemy import Row, delete, exists, func, or_, select, update
from sqlalchemy.orm import Session, aliased

from core.catalogue.backends import BACKENDS
from core.db.database import now
from core.db.models.jobs import (
    BY_FAULT_OF_HOST,
    IS_QUEUED,
    Attempt,
    GpuAllocation,
    Job,
    LeaderLease,
    Outbox,
    RepairCount,
    Worker,
)
from core.jobs.guarded_updates import enqueue_wake, insert_ignore
from core.jobs.states import OWNED

WITH_OWN_QUEUE = [name for name, backend in BACKENDS.items() if backend.capabilities.own_queue]
_MOST_FAULTS = 3  # jobs in turn that a host may fail
_FAULTS_SECONDS = 86_400.0  # older failures say nothing of a host
_CLOCK_SECONDS = 600.0  # allowed difference of leases: workers may have different settings


def try_become_leader(session: Session, name: str, holder: str, seconds: float) -> bool:
    """Take or renew the lease on a task for `seconds`; False if another holder has it.

    A lease that ends much later than a new one would was taken before the database's clock was set back, and is over.
    """
    first = insert_ignore(session.get_bind().dialect.name, LeaderLease)
    session.execute(first.values(name=name, holder=holder, until=now()))
    over = or_(LeaderLease.until < now(), LeaderLease.until > now(seconds + _CLOCK_SECONDS))
    mine = (
        update(LeaderLease)
        .where(LeaderLease.name == name, or_(LeaderLease.holder == holder, over))
        .values(holder=holder, until=now(seconds))
        .returning(LeaderLease.name)
    )
    return session.scalar(mine, execution_options={"synchronize_session": False}) is not None


def count_repairs(session: Session, worker: str, repaired: Mapping[str, int]) -> None:
    for kind, number in repaired.items():
        if number:
            first = insert_ignore(session.get_bind().dialect.name, RepairCount)
            session.execute(first.values(kind=kind, total=0, last_at=now(), last_worker=worker))
            counted = update(RepairCount).where(RepairCount.kind == kind)
            session.execute(counted.values(total=RepairCount.total + number, last_at=now(), last_worker=worker))


def drain_failing_hosts(session: Session) -> int:
    """Drain the workers of hosts on which several jobs in turn failed by the host's fault; return how many.

    In turn: each was claimed after the one before had failed, so that what ends all jobs of a host at once counts once.
    Jobs of one array count once, and jobs that failed in the same way elsewhere not at all: they may be the cause.
    """
    group = func.coalesce(Job.array_id, Job.id)
    faults = select(Attempt).where(BY_FAULT_OF_HOST, Attempt.ended_at > now(-_FAULTS_SECONDS)).subquery()
    elsewhere = aliased(faults)
    query = (
        select(faults.c.host, group.label("jobs"), faults.c.job_id, faults.c.claimed_at, faults.c.ended_at)
        .join(Job, Job.id == faults.c.job_id)
        .join(Worker, Worker.name == faults.c.worker)
        .where(Worker.drained_at.is_(None), or_(Worker.resumed_at.is_(None), Worker.resumed_at < faults.c.claimed_at))
        .where(Job.backend.not_in(WITH_OWN_QUEUE))
        .where(~exists().where(elsewhere.c.job_id == faults.c.job_id, elsewhere.c.host != faults.c.host))
        .order_by(faults.c.ended_at.desc())
    )
    in_turn: dict[str, list[Row[str, str, str, datetime, datetime]]] = defaultdict(list)
    for row in session.execute(query):
        failed = in_turn[row.host]
        is_other = all(row.jobs != later.jobs for later in failed)
        if len(failed) < _MOST_FAULTS and is_other and (not failed or row.ended_at <= failed[-1].claimed_at):
            failed.append(row)
    return sum(_drain_failing(session, host, failed) for host, failed in in_turn.items() if len(failed) == _MOST_FAULTS)


def _drain_failing(session: Session, host: str, failed: Sequence[Row[str, str, str, datetime, datetime]]) -> int:
    """Drain the workers of a host unless another job ended there since the first of these failed."""
    since = Job.finished_at > failed[-1].ended_at
    if session.scalar(select(Job.id).where(since, Job.host == host, ~BY_FAULT_OF_HOST).limit(1)) is not None:
        return 0
    why = f"{len(failed)} jobs in turn failed here by the machine's fault"  # without ids: everybody sees it
    open_here = update(Worker).where(Worker.host == host, Worker.drained_at.is_(None))
    drained = open_here.values(drained_at=now(), drain_reason=why).returning(Worker.name)
    return len(session.execute(drained, execution_options={"synchronize_session": False}).all())


def renotify_overdue(session: Session, *, seconds: float) -> int:
    """Add a wake message for each machine type with a job due for longer than `seconds`, if none are unsent.

    The first message may have been lost with the broker. If no machine is free, another one does no harm.
    """
    due_since = func.coalesce(Job.run_after, Job.created_at)
    late = select(func.min(Job.seq)).where(IS_QUEUED, due_since < now(-seconds)).group_by(Job.machine_type)
    unsent = exists().where(Outbox.kind == "wake")
    jobs = list(session.scalars(select(Job).where(Job.seq.in_(late), ~unsent)))
    for job in jobs:
        enqueue_wake(session, job)
    return len(jobs)


def release_orphaned_gpus(session: Session) -> int:
    """Free the GPUs of jobs that no worker holds; transitions free them, so there are some only after a failure."""
    held = exists().where(Job.id == GpuAllocation.job_id, Job.attempt == GpuAllocation.attempt, Job.state.in_(OWNED))
    freed = delete(GpuAllocation).where(~held).returning(GpuAllocation.gpu)
    return len(session.execute(freed, execution_options={"synchronize_session": False}).all())
