"""Claims: choose the next job for a worker by the host's free capacity, priority and the projects' shares.

Claims are serialized on every database: the order, the shares and the quotas are then exact, and no two workers
consider the same job. A claim takes a few milliseconds, an attempt seconds at least.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import lru_cache
from typing import Any, Self

from sqlalchemy import (
    ColumnElement,
    String,
    Subquery,
    and_,
    bindparam,
    case,
    func,
    insert,
    literal_column,
    or_,
    select,
    update,
)
from sqlalchemy.orm import Session, aliased

from core.catalogue.backends import capabilities_of
from core.db import turns
from core.db.database import Base, now
from core.db.models.jobs import IS_QUEUED, Attempt, GpuAllocation, Job, Project, Worker
from core.db.prepared import Prepared, is_one_of
from core.jobs import lifecycle
from core.jobs.costs import limits
from core.jobs.costs.limits import Admission
from core.jobs.guarded_updates import JOBS, add_event, job_of
from core.jobs.scheduling import nodes, port_allocations
from core.jobs.scheduling.capacity import unusable_gpus
from core.jobs.scheduling.dependencies import IS_WAITING
from core.jobs.scheduling.port_allocations import PortRange
from core.jobs.states import OWNED, WAITING_PHASE, JobState
from core.security import job_rights

_NO_PORTS = PortRange(1, 0, "")
_UNLIMITED = 2**31 - 1
_MAX_TRIES = 3
_MAX_TOGETHER = 1000  # members of an array in one claim, for a queue elsewhere
_KEPT_QUERIES = 64
_MAX_ARRAYS = 10  # of nodes that do not fit, each smaller than those before it, until one job is looked for
_RESET_COLUMNS = (
    "started_at",
    "ended_at",
    "exit_code",
    "image_digest",
    "handle",
    "reason",
    "reason_detail",
    "phase_detail",
)
"""Columns of a job that each claim resets to NULL."""
_INSERT_ATTEMPT = Prepared(
    insert(Base.metadata.tables[Attempt.__tablename__]),
    ("job_id", "attempt", "worker", "host", "eligible_at", "claimed_at"),
)
_INSERT_GPU_ALLOCATION = insert(Base.metadata.tables[GpuAllocation.__tablename__])
_IS_STARTING_NODE = and_(JOBS.c.nodes.is_not(None), is_one_of(JOBS.c.state, [JobState.STARTING]))
_HOST_USAGE = Prepared(
    select(
        func.sum(JOBS.c.cpus),
        func.sum(JOBS.c.memory_mb),
        func.count(case((JOBS.c.worker == bindparam("of_worker"), 1))),
        func.count(case((and_(JOBS.c.worker == bindparam("of_worker"), _IS_STARTING_NODE), 1))),
    ).where(
        JOBS.c.host == bindparam("on_host"),
        is_one_of(JOBS.c.state, sorted(OWNED)),
        JOBS.c.phase.is_distinct_from(WAITING_PHASE),
    )
)
_GPUS = select(GpuAllocation.gpu).where(GpuAllocation.host == bindparam("on_host"))
_PROJECTS = Base.metadata.tables[Project.__tablename__]
_LATEST_CLAIM = Prepared(select(func.max(_PROJECTS.c.last_claimed_at)))
_SET_CLAIMED = Prepared(
    update(_PROJECTS).where(_PROJECTS.c.id == bindparam("project")).values(last_claimed_at=bindparam("claimed_at"))
)
_member = aliased(Job)
# SQLite uses an index of some states only for the very condition that the index has.
_OWNED_AS_INDEXED: list[ColumnElement[str]] = [
    literal_column(f"'{state}'") for state in [state for state in JobState if state in OWNED]
]
_RUNNING_MEMBERS = (
    select(func.count())
    .where(_member.array_id == Job.array_id, _member.state.in_(_OWNED_AS_INDEXED))
    .correlate(Job)
    .scalar_subquery()
)
"""Members of a job's array that workers hold."""
_TICK = timedelta(microseconds=1)
_Choice = tuple[int, "WorkerOffer", int | None]  # a job by seq, for whom, and the first of its nodes' ports


@dataclass(frozen=True, slots=True)
class WorkerOffer:
    worker: str
    host: str  # its machine's name; workers of one host share its capacity
    backends: tuple[str, ...]
    machine_types: tuple[str, ...] | None = None  # machine types that it takes; None: all that its backends run
    gpus: tuple[str, ...] | None = None  # the host's GPUs; None: not counted
    cpus: float | None = None  # the host's CPUs; None: not counted
    memory_mb: int | None = None  # the host's memory in MiB; None: not counted
    ports: PortRange = _NO_PORTS  # the host's port range for jobs that name no port, and the address for links to them
    refusal: str | None = None  # why it takes no jobs of a backend, or nodes with other hosts, that it is set to take
    nodes_address: str | None = None  # where nodes on other hosts reach those here; None: it takes no such nodes

    @classmethod
    def of(cls, worker: Worker) -> Self:
        """Return the offer of another worker, as far as nodes need it, without GPUs that jobs cannot get."""
        unusable = unusable_gpus(worker)
        gpus = None if worker.gpus is None else tuple(gpu for gpu in worker.gpus if gpu not in unusable)
        return cls(worker.name, worker.host, (), gpus=gpus, cpus=worker.cpus, memory_mb=worker.memory_mb)


@dataclass(frozen=True, slots=True)
class _FreeCapacity:
    """The free capacity of a host; GPUs by name."""

    gpus: tuple[str, ...] | None
    cpus: float
    memory_mb: float
    allocated_ports: frozenset[int]
    held: int  # jobs of the worker, if it may not know of all of them; else 0

    def room(self, gpus: int, cpus: float | None, memory_mb: int | None) -> float:
        """Return how many jobs that need so much have room."""
        free_gpus = _UNLIMITED if self.gpus is None else len(self.gpus)
        needs = (gpus, free_gpus), (cpus, self.cpus), (memory_mb, self.memory_mb)
        return min((free // need for need, free in needs if need), default=math.inf)

    def without_gpus_of(self, job: Job) -> "_FreeCapacity":
        return self if self.gpus is None else replace(self, gpus=self.gpus[job.gpus :])


def has_claimable_job(session: Session, offer: WorkerOffer) -> bool:
    """Check whether a claim would succeed, without the write lock that a claim takes."""
    return bool(_choose_affordable(session, offer, _free_capacity(session, offer), lock=False)[0])


def claim(session: Session, offer: WorkerOffer) -> Job | None:
    """Take the next job that fits: `queued → starting`, attempt and lease + 1, its GPUs allocated.

    Among the jobs that fit on the host now and whose project is below its quota, the next one has the highest priority;
    among those, its project has the fewest running jobs; among those, its project was served longest ago; among those,
    it is the oldest. A job that does not fit is skipped, never waited for. For the first seconds a job is also skipped
    if another host with room for it has its image and this one does not. Returns the job; None if nothing fits or the
    worker is drained. All nodes of an array are taken together, for workers that find them by their own names; the
    returned job is that of rank 0.
    """
    take_turn(session)
    free = _free_capacity(session, offer)
    for _ in range(_MAX_TRIES):
        jobs: list[Job] = []
        of_hosts = {offer.host: free}
        chosen, allowed = _choose_affordable(session, offer, free, lock=True)
        granted = {"allowed_seconds": allowed.seconds, "allowed_by": allowed.limit}
        for seq, to, port in chosen:
            where = {"claimant": to.worker, "claimed_on": to.host, "first_port": port}
            rows = _CLAIM.rows(session, {"chosen": seq, **where, **granted})
            if rows:  # none: it was cancelled between the two statements
                jobs.append(job_of(rows[0]))
                left = of_hosts.get(to.host) or _free_capacity(session, to)
                _record_claim(session, jobs[-1], to, left)
                of_hosts[to.host] = left.without_gpus_of(jobs[-1])
        free = of_hosts[offer.host]
        if jobs:
            if allowed.seconds is None:  # else each has to be granted its share
                _claim_members_with(session, jobs[0], offer, free)
            return jobs[0]
    return None


def _claim_members_with(session: Session, job: Job, offer: WorkerOffer, free: _FreeCapacity) -> None:
    """Claim the other members of a job's array, too, if all of them can wait in a queue elsewhere.

    That queue sees to the array's limit, unless some of its members are there already.
    """
    if job.array_id is None or job.nodes is not None or job.attempt > 1 or job.spec.ports:
        return
    others = select(func.count()).where(Job.array_id == job.array_id, is_one_of(Job.state, sorted(OWNED)))
    if not capabilities_of(job.backend).own_queue or (job.array_limit is not None and session.scalar(others) != 1):
        return
    quota = session.scalar(select(Project.max_running).where(Project.id == job.project_id))
    busy = select(func.count()).where(Job.project_id == job.project_id, is_one_of(Job.state, sorted(OWNED)))
    room = _MAX_TOGETHER - 1 if quota is None else min(_MAX_TOGETHER - 1, quota - (session.scalar(busy) or 0))
    same = Job.array_id == job.array_id, Job.machine_type == job.machine_type, Job.attempt == 0
    ready = IS_QUEUED, or_(Job.run_after.is_(None), Job.run_after <= now()), ~IS_WAITING
    for seq in session.scalars(select(Job.seq).where(*same, *ready).order_by(Job.seq).limit(max(0, room))).all():
        where = {"claimant": offer.worker, "claimed_on": offer.host, "first_port": None}
        for row in _CLAIM.rows(session, {"chosen": seq, "allowed_seconds": None, "allowed_by": None, **where}):
            _record_claim(session, job_of(row), offer, free)


def take_turn(session: Session) -> None:
    """Wait for claims in progress; no other one is made until the transaction ends."""
    turns.take_turn(session, limits.CLAIMS)


def find_free_gpus(session: Session, offer: WorkerOffer) -> tuple[str, ...]:
    """Return the offer's GPUs that no job holds; empty if GPUs are not counted."""
    return _free_capacity(session, offer).gpus or ()


def gpus_of(session: Session, job: Job) -> tuple[str, ...]:
    """Return the GPUs allocated to the job's current attempt."""
    held = select(GpuAllocation.gpu).where(GpuAllocation.job_id == job.id, GpuAllocation.attempt == job.attempt)
    return tuple(session.scalars(held.order_by(GpuAllocation.gpu)))


def _record_claim(session: Session, job: Job, offer: WorkerOffer, free: _FreeCapacity) -> None:
    _INSERT_ATTEMPT.execute(
        session,
        {
            "job_id": job.id,
            "attempt": job.attempt,
            "worker": job.worker,
            "host": offer.host,
            "eligible_at": job.run_after or job.created_at,
            "claimed_at": job.claimed_at,
        },
    )
    if free.gpus is not None and job.gpus:
        of_job = {"host": offer.host, "job_id": job.id, "attempt": job.attempt}
        session.execute(_INSERT_GPU_ALLOCATION, [of_job | {"gpu": gpu} for gpu in free.gpus[: job.gpus]])
    port_allocations.allocate_ports(session, job, offer.host, offer.ports, free.allocated_ports)
    # After every other project's last claim, also within one tick of the clock.
    ((latest,),) = _LATEST_CLAIM.rows(session, {})
    claimed_at = job.claimed_at if latest is None else max(job.claimed_at, latest + _TICK)
    _SET_CLAIMED.execute(session, {"project": job.project_id, "claimed_at": claimed_at})
    add_event(session, job, "claimed", from_state=JobState.QUEUED, to_state=JobState.STARTING, detail=job.worker)


def _free_capacity(session: Session, offer: WorkerOffer) -> _FreeCapacity:
    on_host = {"on_host": offer.host}
    ((held_cpus, held_memory_mb, held, nodes_starting),) = _HOST_USAGE.rows(
        session, on_host | {"of_worker": offer.worker}
    )
    gpus = offer.gpus
    if gpus is not None:
        taken = set(session.scalars(_GPUS, on_host))
        gpus = tuple(gpu for gpu in gpus if gpu not in taken)
    return _FreeCapacity(
        gpus=gpus,
        cpus=_UNLIMITED if offer.cpus is None else offer.cpus - (held_cpus or 0.0),
        memory_mb=_UNLIMITED if offer.memory_mb is None else offer.memory_mb - (held_memory_mb or 0),
        allocated_ports=port_allocations.allocated_ports(session, offer.host),
        held=held if nodes_starting else 0,
    )


def _choose_affordable(
    session: Session, offer: WorkerOffer, free: _FreeCapacity, *, lock: bool
) -> tuple[Sequence[_Choice], Admission]:
    """Return what to claim, and what ceilings and budgets allow it; what they allow nothing now is passed over.

    What its owner may no longer have run is cancelled if `lock`.
    """
    unpaid = ""
    while chosen := _choose(session, offer, free, unpaid, lock=lock):
        jobs = [job_of(row) for seq, _, _ in chosen for row in _JOB.rows(session, {"chosen": seq})]
        # Without the lock it is left to the claim: a worker that has joined may not read keys and members.
        lost = job_rights.find_lost(session, jobs[0]) if lock else None
        if lost is not None:
            _cancel_waiting(session, lost.jobs, "access_lost", lost.text)
            continue
        allowed = limits.admit(session, jobs)
        if allowed.lacking is None or (allowed.is_spent and not lock):
            return chosen, allowed
        unpaid += f"{allowed.lacking.subject} "
        if allowed.is_spent:
            _cancel_waiting(session, allowed.lacking.jobs, "cost_limit", allowed.lacking.text)
    return (), Admission()


def _cancel_waiting(session: Session, jobs: ColumnElement[bool], reason: str, detail: str) -> None:
    for job in session.scalars(select(Job).where(jobs, IS_QUEUED).with_for_update()).all():
        lifecycle.cancel_queued(session, job, reason, detail)


def _choose(session: Session, offer: WorkerOffer, free: _FreeCapacity, unpaid: str, *, lock: bool) -> Sequence[_Choice]:
    """Return what to claim, and for whom: one job, or all nodes of an array, by seq, with the first of their ports.

    `unpaid`: ids of projects, users, keys and sets of jobs that are passed over.
    """
    passed_over = ""
    for tries in range(_MAX_ARRAYS + 1):
        row = _next_job(session, offer, free, unpaid, passed_over if tries < _MAX_ARRAYS else None)
        if row is None:
            break
        seq, array_id, *needs = row
        if array_id is None:
            return [(seq, offer, None)]

        def room(worker: Worker, needs: Sequence[Any] = needs) -> float:
            same_host = worker.host == offer.host
            return (free if same_host else _free_capacity(session, WorkerOffer.of(worker))).room(*needs)

        assignment = nodes.assign(session, array_id, offer.worker, offer.host, room, lock=lock)
        if assignment.workers or assignment.keeps_host:
            return [
                (seq, replace(offer if to.host == offer.host else WorkerOffer.of(to), worker=to.name), assignment.port)
                for seq, to in assignment.workers
            ]
        passed_over += assignment.without
    return ()


def _next_job(
    session: Session, offer: WorkerOffer, free: _FreeCapacity, unpaid: str, passed_over: str | None
) -> Sequence[Any] | None:
    """Return the next job's seq, its array if it is the first of nodes, and what it needs; None: nothing fits.

    `passed_over`: the ids of arrays whose nodes do not fit; None: those of all.
    """
    params: dict[str, Any] = {
        "worker": offer.worker,
        "held": free.held,
        "passed_over": passed_over,
        "free_gpus": _UNLIMITED if free.gpus is None else len(free.gpus),
        "free_cpus": free.cpus,
        "free_memory_mb": free.memory_mb,
        "free_ports": offer.ports.count_free(free.allocated_ports),
        "on_host": offer.host,
    }
    if unpaid:
        params["unpaid"] = unpaid
    rows = _next_job_query(offer.backends, offer.machine_types, some_unpaid=bool(unpaid)).rows(session, params)
    return rows[0] if rows else None


@lru_cache(_KEPT_QUERIES)
def _next_job_query(backends: tuple[str, ...], machine_types: tuple[str, ...] | None, *, some_unpaid: bool) -> Prepared:
    fits = [
        IS_QUEUED,
        is_one_of(Job.backend, backends),
        or_(Job.run_after.is_(None), Job.run_after <= now()),
        ~IS_WAITING,
        or_(Job.array_limit.is_(None), Job.array_limit > _RUNNING_MEMBERS),
        # Nodes are claimed with the first of them.
        or_(
            Job.nodes.is_(None),
            and_(Job.array_index == 0, ~bindparam("passed_over", type_=String).contains(Job.array_id)),
        ),
        Job.gpus <= bindparam("free_gpus"),
        or_(Job.cpus.is_(None), Job.cpus <= bindparam("free_cpus")),
        or_(Job.memory_mb.is_(None), Job.memory_mb <= bindparam("free_memory_mb")),
        Job.dynamic_ports <= bindparam("free_ports"),
        Job.id.not_in(port_allocations.PORT_CONFLICTS),
    ]
    if machine_types is not None:
        fits.append(is_one_of(Job.machine_type, machine_types))
    if some_unpaid:
        of_set = func.coalesce(Job.cost_set, Job.id)
        subjects = Job.project_id, Job.submitted_by, func.coalesce(Job.user_id, "?"), of_set
        fits += [~bindparam("unpaid", type_=String).contains(subject) for subject in subjects]
    heads = _next_per_project(fits)
    # Another worker of the host may have claimed nodes for this one.
    full = or_(Worker.drained_at.is_not(None), Worker.slots <= bindparam("held"))
    closed = select(Worker.name).where(Worker.name == bindparam("worker"), full)
    return Prepared(
        select(Job.seq, case((Job.nodes.is_not(None), Job.array_id)), Job.gpus, Job.cpus, Job.memory_mb)
        .join(heads, heads.c.seq == Job.seq)
        .where(~closed.exists())
        .order_by(Job.priority.desc(), heads.c.running, heads.c.last_claimed_at.asc().nulls_first(), Job.seq)
        .limit(1)
    )


def _next_per_project(fits: list[ColumnElement[bool]]) -> Subquery:
    """Build a subquery: each project's next job, with its running jobs, for projects below their quota."""
    busy = (
        select(Job.project_id, func.count().label("jobs"))
        .where(is_one_of(Job.state, sorted(OWNED)))
        .group_by(Job.project_id)
        .subquery("busy")
    )
    running = func.coalesce(busy.c.jobs, 0)
    of_project = (
        select(func.count())
        .where(_member.project_id == Project.id, is_one_of(_member.state, sorted(OWNED)))
        .correlate(Project)
        .scalar_subquery()
    )
    within_quota = or_(
        Job.nodes.is_(None), Project.max_running.is_(None), of_project + Job.nodes <= Project.max_running
    )
    # One index lookup per project; only these jobs are compared.
    head = (
        select(Job.seq)
        .where(Job.project_id == Project.id, *fits, within_quota)
        .order_by(Job.priority.desc(), Job.seq)
        .limit(1)
        .correlate(Project)
        .scalar_subquery()
    )
    return (
        select(head.label("seq"), running.label("running"), Project.last_claimed_at)
        .select_from(Project)
        .outerjoin(busy, busy.c.project_id == Project.id)
        .where(or_(Project.max_running.is_(None), running < Project.max_running))
        .subquery("heads")
    )


def _claim_statement() -> Prepared:
    return Prepared(
        update(JOBS)
        .where(JOBS.c.seq == bindparam("chosen"), JOBS.c.state == JobState.QUEUED)
        .values(
            state=JobState.STARTING,
            attempt=JOBS.c.attempt + 1,
            lease=JOBS.c.lease + 1,
            worker=bindparam("claimant"),
            host=bindparam("claimed_on"),
            heartbeat_at=now(),
            claimed_at=now(),
            phase="provisioning",
            nodes_port=bindparam("first_port"),
            run_seconds=bindparam("allowed_seconds"),
            run_limit=bindparam("allowed_by"),
            **dict.fromkeys(_RESET_COLUMNS),
        )
        .returning(*JOBS.c)
    )


_CLAIM = _claim_statement()
_JOB = Prepared(select(*JOBS.c).where(JOBS.c.seq == bindparam("chosen")))
