"""Database operations of the sweep: its lease, repairs of stale rows, and counts of repairs."""

from collections.abc import Mapping

from sqlalchemy import delete, exists, func, or_, select, update
from sqlalchemy.orm import Session

from core.db.database import now
from core.db.models.jobs import IS_QUEUED, GpuAllocation, Job, LeaderLease, Outbox, RepairCount
from core.jobs.guarded_updates import enqueue_wake, insert_ignore
from core.jobs.states import OWNED

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
