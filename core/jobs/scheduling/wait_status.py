"""Wait status of queued jobs: the reason, the queue position, and an estimate of the start.

The first reason that applies is reported:

    no_worker            no live worker offers the machine type
    too_large            each of those workers is too small for the job
    draining             each of the large enough ones is drained
    low_disk             each of those not drained has too little disk space
    retrying             the job pauses before its next attempt
    after_job            a job that it waits for has not ended
    array_limit          as many members of its array run as may run at once
    budget               its ceiling or a budget has too little left
    project_quota        its project has reached its limit of running jobs
    waiting_for_gpus    no worker has as many free GPUs as it needs
    waiting_for_nodes    no host has room for all its nodes at once
    waiting_for_port     on each host, another job has a port that it names
    behind_jobs          other jobs are ahead of it
    waiting_for_machine  it is next

A job that a worker holds does not wait; `worker_unresponsive` is added by `service.presenters.jobs`.
"""

import sys
from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any

from sqlalchemy import Row, Select, and_, case, func, or_, select, union_all
from sqlalchemy.orm import Session

from core.db.database import now
from core.db.models.jobs import IS_QUEUED, GpuAllocation, Job, Worker
from core.formatting import format_moment
from core.jobs.costs import budgets
from core.jobs.scheduling import dependencies, start_estimate
from core.jobs.scheduling.capacity import (
    LiveWorkers,
    by_host,
    explain_too_large,
    explain_too_many_nodes,
    fits,
    job_capacity,
    joined_workers,
    live_workers,
    unusable_gpus,
)
from core.jobs.scheduling.nodes import can_claim
from core.jobs.scheduling.port_allocations import allocated_ports_by_host
from core.jobs.scheduling.queue_position import ProjectUsage, QueuePosition, prospective_positions, queue_positions
from core.jobs.states import OWNED, WAITING_PHASE, JobState
from core.security.visibility import seeing_everything

HISTORY = 100  # most recent ended jobs of a machine type that an estimate is based on
_HELD_JOBS = select(
    *(Job.machine_type, Job.project_id, Job.worker, Job.host, Job.phase, Job.cpus, Job.memory_mb),
    func.coalesce(Job.claimed_at, Job.started_at).label("held_since"),
).where(Job.state.in_(OWNED))
_HeldRow = Row[str, str, str | None, str | None, str | None, float | None, int | None, datetime | None]
_NEED = (Job.machine_type, Job.backend, Job.gpus, Job.cpus, Job.memory_mb)
_LATER = or_(Job.run_after > now(), Job.array_limit.is_not(None), Job.nodes.is_not(None), dependencies.IS_WAITING)
_WAITING = (
    select(*_NEED, Job.project_id, func.sum(case((_LATER, 1), else_=0)).label("later"))
    .where(IS_QUEUED)
    .group_by(*_NEED, Job.project_id)
)
_WaitingRow = Row[str, str, int, float | None, int | None, str, int]
_MOST_STUCK = 1000  # jobs too large for every worker that are looked at; positions behind more are higher
_HELD_GPUS = select(GpuAllocation.host, GpuAllocation.gpu)


@dataclass(frozen=True, slots=True)
class WaitStatus:
    reason: str
    detail: str | None
    position: int  # queue position among the jobs of its machine type; 1 is next
    # Estimated start, from the durations of the last jobs of its machine type, the running jobs and its position. None
    # if it cannot be known to within a quarter or a minute.
    starts_at: datetime | None


def wait_status(session: Session, job: Job) -> WaitStatus:
    return wait_statuses(session, [job])[job.id]


@seeing_everything()
def wait_statuses(session: Session, jobs: Iterable[Job]) -> dict[str, WaitStatus]:
    """Return the wait status of the queued jobs among these, by id; the number of queries is constant."""
    queued = [job for job in jobs if job.state == JobState.QUEUED]
    if not queued:
        return {}
    positions = queue_positions(session, queued)
    snapshot = _load_snapshot(session, queued, positions)
    return {job.id: snapshot.wait_status(job) for job in queued}


@seeing_everything()
def prospective_waits(session: Session, jobs: Sequence[Job]) -> dict[str, WaitStatus]:
    """Return the wait status that jobs would have if each of them alone were submitted now, by id.

    `jobs`: jobs that are not in the database; at least one.
    """
    snapshot = _load_snapshot(session, jobs, prospective_positions(session, jobs))
    return {job.id: snapshot.wait_status(job) for job in jobs}


def _load_snapshot(session: Session, queued: Sequence[Job], positions: dict[str, QueuePosition]) -> "_QueueSnapshot":
    at = session.scalars(select(now())).one()
    held = list(session.execute(_HELD_JOBS))
    types = {job.machine_type for job in queued} | {row.machine_type for row in held}
    gpus: dict[str, set[str]] = defaultdict(set)
    if any(job.gpus for job in queued):
        for row in session.execute(_HELD_GPUS):
            gpus[row.host].add(row.gpu)
    ports = allocated_ports_by_host(session) if any(job.spec.ports for job in queued) else {}
    after = dependencies.describe(session, [job.id for job in queued if job.spec.after or job.spec.inputs])
    arrays = {job.array_id for job in queued if job.array_limit is not None}
    owned = select(Job.array_id, func.count()).where(Job.array_id.in_(arrays), Job.state.in_(OWNED))
    members: dict[str | None, int] = dict(session.execute(owned.group_by(Job.array_id)).all()) if arrays else {}
    unpaid = budgets.explain_waits(session, queued)
    durations = _durations(session, types)
    workers = live_workers(session)
    waiting = session.execute(_WAITING).all()
    positions = _positions_among_startable(session, waiting, queued, positions, workers)
    return _QueueSnapshot(at, positions, workers, held, durations, gpus, ports, after, members, waiting, unpaid)


def _positions_among_startable(
    session: Session,
    waiting: Sequence[_WaitingRow],
    queued: Sequence[Job],
    positions: dict[str, QueuePosition],
    workers: LiveWorkers,
) -> dict[str, QueuePosition]:
    """Return the positions without the jobs ahead that are too large for every worker: nobody waits for them."""
    types = {job.machine_type for job in queued}
    too_large = [
        row
        for row in waiting
        if row.machine_type in types
        and (offering := workers.for_machine_type(row.machine_type, row.backend))
        and not any(fits(worker, row) for worker in offering)  # type: ignore[arg-type] # has a job's needs
    ]
    if not too_large:
        return positions
    of_need = (
        and_(*(column.is_not_distinct_from(value) for column, value in zip(_NEED, row, strict=False)))
        for row in too_large
    )
    stuck = session.scalars(select(Job).where(IS_QUEUED, or_(*of_need)).order_by(Job.seq).limit(_MOST_STUCK)).all()
    numbers: dict[tuple[str, str], list[int]] = defaultdict(list)
    places = queue_positions(session, stuck)
    for job in stuck:
        if job.id in places:
            insort(numbers[job.machine_type, job.backend], places[job.id].number)
    return positions | {
        job.id: replace(
            position, number=position.number - bisect_left(numbers[job.machine_type, job.backend], position.number)
        )
        for job in queued
        if (position := positions.get(job.id)) is not None
    }


def _durations(session: Session, types: Collection[str]) -> dict[str, list[float]]:
    """Return how long the last jobs of each machine type held their slots, in seconds."""
    durations: dict[str, list[float]] = defaultdict(list)
    recent = (select(_recent_durations(machine_type).subquery()) for machine_type in sorted(types))
    for row in session.execute(union_all(*recent)):
        held_until = row.finished_at or row.ended_at
        durations[row.machine_type].append(max(0.0, (held_until - (row.claimed_at or row.started_at)).total_seconds()))
    return durations


def _recent_durations(machine_type: str) -> Select[*tuple[Any, ...]]:
    ran = (Job.machine_type == machine_type, Job.started_at.is_not(None), Job.ended_at.is_not(None))
    columns = select(Job.machine_type, Job.claimed_at, Job.started_at, Job.ended_at, Job.finished_at)
    return columns.where(*ran).order_by(Job.ended_at.desc()).limit(HISTORY)


def _need(job: Job | _WaitingRow) -> tuple[str, str, int, float | None, int | None]:
    """Return what decides which workers are large enough for a job, and for how many such jobs they have room."""
    return job.machine_type, job.backend, job.gpus, job.cpus, job.memory_mb


@dataclass(frozen=True)
class _QueueSnapshot:
    """The rows needed to explain why a set of jobs is waiting."""

    at: datetime  # now, by the database's clock
    positions: dict[str, QueuePosition]
    live_workers: LiveWorkers
    held_jobs: Sequence[_HeldRow]
    durations: Mapping[str, Sequence[float]]  # of the last jobs, by machine type, in seconds
    gpus: Mapping[str, set[str]]
    ports: Mapping[str, Mapping[int, str]]
    after: Mapping[str, str]  # what has to happen before a job may start, by its id
    running_members: Mapping[str | None, int]  # of arrays, by id
    waiting: Sequence[
        Row[*tuple[Any, ...]]
    ]  # what waiting jobs need, with the number of those that may start only later
    unpaid: Mapping[str, str]  # what ceilings and budgets lack for a job, by its id

    def wait_status(self, job: Job) -> WaitStatus:
        # A job without a place was claimed meanwhile, so it was next.
        position = self.positions.get(job.id, QueuePosition(1, 0, ProjectUsage()))
        offering, large, working = self._workers_for(job)
        if large and (too_many := explain_too_many_nodes(job, large)) is not None:
            return WaitStatus("too_large", too_many, position.number, None)
        reason, detail = self._blocking_reason(job, offering, large, working) or self._position_reason(
            job, position, working
        )
        unknown = job.nodes is not None or reason in {"after_job", "array_limit", "waiting_for_port", "budget"}
        starts_at = None if unknown else self._starts_at(job, position, list(filter(can_claim, working)))
        return WaitStatus(reason, detail, position.number, starts_at)

    def _workers_for(self, job: Job | _WaitingRow) -> tuple[list[Worker], list[Worker], list[Worker]]:
        """Return the workers of a job's machine type, those large enough for it, and of these those not drained."""
        need = _need(job)
        if need not in self._workers_by_need:
            offering = self.live_workers.for_machine_type(job.machine_type, job.backend)
            large = [worker for worker in offering if fits(worker, job)]  # type: ignore[arg-type] # has a job's needs
            working = [worker for worker in large if worker.drained_at is None]
            self._workers_by_need[need] = offering, large, working
        return self._workers_by_need[need]

    @cached_property
    def _workers_by_need(self) -> dict[tuple[Any, ...], tuple[list[Worker], list[Worker], list[Worker]]]:
        return {}

    def _blocking_reason(
        self, job: Job, offering: Sequence[Worker], large: Sequence[Worker], working: Sequence[Worker]
    ) -> tuple[str, str | None] | None:
        """Return reason and detail if no worker could take the job whatever its position, else None."""
        if not large:
            refusals = self.live_workers.explain_refusals(job)
            if offering:
                return "too_large", ". ".join(filter(None, (explain_too_large(job, offering), refusals)))
            return "no_worker", refusals or "Start one with `gradient-server worker`"
        if not working:
            return "draining", None
        full = [worker.low_disk for worker in working if worker.low_disk is not None]
        if len(full) == len(working):
            return "low_disk", full[0]
        if job.run_after is not None and job.run_after > self.at:
            ended = f"{job.reason_detail} " if job.reason_detail else ""
            return "retrying", f"{ended}The next attempt starts at {format_moment(job.run_after)}."
        return None

    def _position_reason(self, job: Job, position: QueuePosition, working: Sequence[Worker]) -> tuple[str, str | None]:
        """Return reason and detail of a job that some worker could take."""
        if held_back := self._held_back(job, position.usage):
            return held_back
        if job.gpus and self._free_gpus(most := max(working, key=self._free_gpus)) < job.gpus:
            return "waiting_for_gpus", self._gpus_of(job, most)
        if job.nodes is not None and (room := self._too_little_room(job, job.nodes, working)):
            return "waiting_for_nodes", room
        port = self._blocking_port(job, working)
        if port is not None:
            return "waiting_for_port", port
        if position.number > 1:
            ahead = position.number - 1
            return "behind_jobs", f"{ahead:,} job{'s' if ahead > 1 else ''}"
        return "waiting_for_machine", None

    def _held_back(self, job: Job, usage: ProjectUsage) -> tuple[str, str] | None:
        """Return reason and detail of a job that may not start yet, even on a free machine."""
        if job.id in self.after:
            return "after_job", self.after[job.id]
        if job.array_limit is not None and self.running_members.get(job.array_id, 0) >= job.array_limit:
            return "array_limit", f"{job.array_limit:,}"
        if job.id in self.unpaid:
            return "budget", self.unpaid[job.id]
        if usage.at_limit or (usage.max_running is not None and usage.running + (job.nodes or 1) > usage.max_running):
            running = f" ({usage.running:,} running, {job.nodes:,} needed)" if job.nodes is not None else ""
            return "project_quota", f"{usage.max_running:,} running job{'s' * (usage.max_running != 1)}{running}"
        return None

    def _too_little_room(self, job: Job, nodes: int, working: Sequence[Worker]) -> str | None:
        """Describe how many nodes could start now; None: all of them."""
        rooms = {
            host: min(sum(self._idle_slots(worker) for worker in its), self._idle_capacity(its[0], job))
            for host, its in by_host(working).items()
        }
        host = max(rooms, key=lambda name: rooms[name])
        most, where = rooms[host], host
        joined = by_host(joined_workers(job, working))
        if len(joined) > 1 and (together := sum(rooms[name] for name in joined)) >= most:
            most, where = together, f"{len(joined):,} machines"
        if most >= nodes:
            return None
        of_gpus = f" with {job.gpus:,} GPU{'s' if job.gpus > 1 else ''} each" if job.gpus else ""
        return f"{nodes:,} slots{of_gpus} at once; {max(0, most):,} are free on {where}"

    def _free_gpus(self, worker: Worker) -> float:
        return self._free_gpus_by_worker[worker.name]

    @cached_property
    def _free_gpus_by_worker(self) -> dict[str, float]:
        """The number of free GPUs of each worker; those of a worker that counts none are infinitely many."""
        return {
            worker.name: float("inf")
            if worker.gpus is None
            else len(set(worker.gpus) - self.gpus.get(worker.host, set()) - self._unusable(worker).keys())
            for worker in self.live_workers.workers
        }

    def _unusable(self, worker: Worker) -> dict[str, str]:
        """Return the GPUs of a worker that jobs cannot get though none holds them, each with the reason."""
        held = self.gpus.get(worker.host, set())
        return {gpu: why for gpu, why in unusable_gpus(worker).items() if gpu not in held}

    def _gpus_of(self, job: Job, worker: Worker) -> str:
        free, total, taken = int(self._free_gpus(worker)), len(worker.gpus or ()), self._unusable(worker)
        needs = "a GPU" if job.gpus == 1 else f"{job.gpus} GPUs on one machine"
        others = "; ".join(f"GPU {gpu} is {why}" for gpu, why in taken.items())
        allocations = "jobs use the others" if free + len(taken) < total else ""
        who = "; ".join(part for part in (others, allocations) if part)
        return f"{needs}; {free} of {total} {'is' if free == 1 else 'are'} free on {worker.host}: {who}"

    def _blocking_port(self, job: Job, working: Sequence[Worker]) -> str | None:
        """Describe the port that the job waits for; None if on some host all that it names are free."""
        blocked = None
        named = [port.external for port in job.spec.parsed_ports() if port.external]
        for worker in working if named else ():
            held = self.ports.get(worker.host, {})
            kept = next((port for port in named if port in held), None)
            if kept is None:
                return None
            blocked = f"port {kept} of {worker.host}, which another job uses"
        return blocked

    def _starts_at(self, job: Job, position: QueuePosition, working: Sequence[Worker]) -> datetime | None:
        if not working:
            return None
        bounds = [self._start_seconds(job, position, working, longest) for longest in (0, 1)]
        if bounds[0] is None or bounds[1] is None or (bounds[1] and self._is_disturbed(job, working)):
            return None
        seconds = start_estimate.between(bounds[0], bounds[1])
        return None if seconds is None else (self.at + timedelta(seconds=seconds)).replace(microsecond=0)

    def _start_seconds(
        self, job: Job, position: QueuePosition, working: Sequence[Worker], longest: int
    ) -> float | None:
        """Return the seconds until a job starts if jobs last as short or as long as they typically do; None: never."""
        free_in, duration = self._free_times(job, working, longest), self._duration(job.machine_type, longest)
        inside = start_estimate.start_times(free_in, duration, [position.number]).get(position.number)
        allowed = self._quota_start_seconds(position, job, longest)
        pause = (job.run_after - self.at).total_seconds() if job.run_after else 0.0
        return None if inside is None or allowed is None else max(inside, allowed, pause)

    def _is_disturbed(self, job: Job, working: Sequence[Worker]) -> bool:
        """Return whether the order of starts is unknown.

        So it is if jobs wait for the same workers that need other amounts, or that may start only later; and with those
        of several projects, whose turns depend on when jobs end.
        """
        is_later = job.array_limit is not None or (job.run_after is not None and job.run_after > self.at)
        itself = job.state == JobState.QUEUED and is_later
        others = (row for row in self.waiting if tuple(row[:-1]) != (*_need(job), job.project_id) or row.later > itself)
        return any(worker in working for row in others for worker in self._workers_for(row)[2])

    def _duration(self, machine_type: str, longest: int) -> float:
        return start_estimate.typical_durations(self.durations.get(machine_type, ()))[longest]

    def _free_times(self, job: Job, working: Sequence[Worker], longest: int) -> list[float]:
        """Return the seconds until each slot for jobs with the needs of this one is free."""
        need = *_need(job), longest
        if need not in self._free_times_by_need:
            free_in = [free for worker in working for free in self._slot_free_times(worker, job, longest)]
            self._free_times_by_need[need] = free_in
        return self._free_times_by_need[need]

    @cached_property
    def _free_times_by_need(self) -> dict[tuple[Any, ...], list[float]]:
        return {}

    def _slot_free_times(self, worker: Worker, job: Job, longest: int) -> list[float]:
        """Return the seconds until each of the worker's slots for jobs like this one is free."""
        busy = [self._remaining_seconds(row, longest) for row in self._held_on(worker) if row.worker == worker.name]
        idle = min(self._idle_slots(worker), self._idle_capacity(worker, job))
        return start_estimate.slot_free_times(max(0, idle), busy, job_capacity(worker, job))

    def _held_on(self, worker: Worker) -> list[_HeldRow]:
        """Return the jobs on a worker's host."""
        return self._held_by_host[worker.host]

    @cached_property
    def _held_by_host(self) -> dict[str | None, list[_HeldRow]]:
        rows: dict[str | None, list[_HeldRow]] = defaultdict(list)
        for row in self.held_jobs:
            if row.phase != WAITING_PHASE:
                rows[row.host].append(row)
        return rows

    def _idle_slots(self, worker: Worker) -> int:
        return worker.slots - len([row for row in self._held_on(worker) if row.worker == worker.name])

    def _idle_capacity(self, worker: Worker, job: Job) -> int:
        """Return for how many jobs like this one the worker's host has free GPUs, CPUs and memory."""
        on_host, idle = self._held_on(worker), [sys.maxsize]
        if worker.gpus is not None and job.gpus:
            idle.append(int(self._free_gpus(worker)) // job.gpus)
        if worker.cpus is not None and job.cpus:
            idle.append(int((worker.cpus - sum(row.cpus or 0 for row in on_host)) // job.cpus))
        if worker.memory_mb is not None and job.memory_mb:
            idle.append((worker.memory_mb - sum(row.memory_mb or 0 for row in on_host)) // job.memory_mb)
        return min(idle)

    def _quota_start_seconds(self, position: QueuePosition, job: Job, longest: int) -> float | None:
        """Return the seconds until the project's quota allows this job; None: never."""
        usage = position.usage
        if usage.max_running is None:
            return 0.0
        busy = [self._remaining_seconds(row, longest) for row in self.held_jobs if row.project_id == job.project_id]
        free_in = start_estimate.slot_free_times(max(0, usage.max_running - len(busy)), busy, usage.max_running)
        rank, duration = position.rank + 1, self._duration(job.machine_type, longest)
        return start_estimate.start_times(free_in, duration, [rank]).get(rank)

    def _remaining_seconds(self, row: _HeldRow, longest: int) -> float:
        """Estimate the seconds until a running job ends, at least or at most."""
        elapsed = (self.at - row.held_since).total_seconds() if row.held_since else 0.0
        return start_estimate.remaining_seconds(self.durations.get(row.machine_type, ()), elapsed)[longest]
