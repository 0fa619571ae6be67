"""Nodes: the members of an array that start together, or not at all, and end together.

A claim takes all of them in one transaction, so two such arrays never hold half of what each needs. While one waits,
other jobs use what is free; only in some periods is a host kept for it, so that small jobs do not starve it.
"""

import math
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import chain
from typing import NamedTuple

from sqlalchemy import Select, func, or_, select
from sqlalchemy.orm import Session

from core.db.database import now
from core.db.models.jobs import Attempt, Job, Worker
from core.jobs.reasons import INFRASTRUCTURE_FAULTS, REASONS, Reason, reason_message
from core.jobs.scheduling.capacity import by_host, joined_workers, joint_capacity, live_workers
from core.jobs.states import OWNED, TERMINAL, WAITING_PHASE, JobState

PREPARED_PHASE = "waiting for nodes"
"""Phase of a node whose start is prepared, until those of all others are."""

_FIRST_PERIOD_SECONDS = 60.0
_FIRST_PORT, _PORTS = 10_000, 20_000  # below those that the kernel gives to connections
_ENDS = frozenset(name for name, reason in REASONS.items() if reason.final is JobState.SUCCEEDED)
_CAUSED = "node_failed"


class Assignment(NamedTuple):
    """The start of the nodes of an array: (seq of the job, worker), by rank; none if they do not fit now."""

    workers: Sequence[tuple[int, Worker]]
    keeps_host: bool = False  # whether their host is kept for them until they fit
    without: str = ""  # ids of the arrays to pass over, if not now
    port: int | None = None  # the first of their ports


def assign(
    session: Session, array_id: str, claimant: str, host: str, room: Callable[[Worker], float], *, lock: bool
) -> Assignment:
    """Choose workers for all nodes of an array: of the claimant's host, or of several if no host has room for all.

    Args:
        room: Returns for how many the host of a worker has free GPUs, CPUs and memory.
        lock: Whether the nodes are claimed in this transaction.
    """
    jobs = _nodes(session, array_id, lock=lock)
    at = session.scalars(select(now())).one()
    eligible_at = max(job.run_after or job.created_at for job in jobs)
    if any(job.state is not JobState.QUEUED for job in jobs) or eligible_at > at:
        return Assignment((), without=array_id)
    first = jobs[0]
    hosts = by_host(filter(can_claim, live_workers(session).for_machine_type(first.machine_type, first.backend)))
    joined = by_host(joined_workers(first, chain.from_iterable(hosts.values())))
    large = sorted(host_name for host_name, its in hosts.items() if joint_capacity(its, first) >= len(jobs))
    together = sum(joint_capacity(its, first) for its in joined.values()) >= len(jobs)

    def free(workers: Sequence[Worker]) -> list[Worker]:
        its = sorted(workers, key=lambda worker: worker.name != claimant)
        slots = free_slots(its, _held(session, its[0].host)) if its else []
        return slots[: int(min(room(its[0]), len(slots)))] if slots else []

    chosen = free(hosts.get(host, ()))
    if len(chosen) < len(jobs) and host in joined and together:
        if any(len(free(hosts[host_name])) >= len(jobs) for host_name in large if host_name != host):
            return Assignment((), without=array_id)  # that host takes them
        others = sorted((free(its) for name, its in joined.items() if name != host), key=lambda its: -len(its))
        chosen = list(chain(free(joined[host]), *others))
    if len(chosen) >= len(jobs):
        port = _choose_port(session, first, {worker.host for worker in chosen[: len(jobs)]})
        return Assignment([(job.seq, worker) for job, worker in zip(jobs, chosen, strict=False)], port=port)
    kept: list[Collection[str]] = [[name] for name in large] or ([joined] if together else [])
    if _is_kept(host, kept, (at - eligible_at).total_seconds()):
        return Assignment((), keeps_host=True)
    return Assignment((), without=" ".join(session.scalars(_no_smaller(first))))


def _choose_port(session: Session, first: Job, hosts: Collection[str]) -> int:
    """Choose the first of the ports of nodes: others than those of earlier attempts, and of all nodes on these hosts.

    Both jobs would find a port free, and the second would fail to listen there.
    """
    count = 1 + (first.nodes or 0)
    held = select(Job.nodes_port, Job.nodes).where(Job.host.in_(hosts), Job.state.in_(OWNED), Job.nodes.is_not(None))
    taken = [(port or 0, 1 + (nodes or 0)) for port, nodes in session.execute(held.distinct())]
    start = zlib.crc32(f"{first.array_id} {first.attempt + 1}".encode()) % _PORTS
    ports = (_FIRST_PORT + (start + step) % _PORTS for step in range(_PORTS))
    free = (
        port_number
        for port_number in ports
        if all(port_number + count <= port or port + size <= port_number for port, size in taken)
    )
    return next(free, _FIRST_PORT + start)


def _no_smaller(first: Job) -> Select[str | None]:
    """Select the ids of an array that has no room and of those that have none then, either."""
    if first.spec.network is not None:  # others may be spread over hosts
        return select(Job.array_id).where(Job.id == first.id)
    return select(Job.array_id).where(
        *(Job.state == JobState.QUEUED, Job.array_index == 0, Job.nodes >= first.nodes, Job.gpus >= first.gpus),
        *(Job.machine_type == first.machine_type, Job.backend == first.backend),
        func.coalesce(Job.cpus, 0) >= (first.cpus or 0),
        func.coalesce(Job.memory_mb, 0) >= (first.memory_mb or 0),
    )


def _is_kept(host: str, choices: Sequence[Collection[str]], waited: float) -> bool:
    """Return whether this host is kept free for an array: `choices` are hosts, or sets of them, that are large enough.

    It is in the second minute of its wait, in the fifth to eighth, and so on: of every two periods one, of one choice,
    and in the end a period is longer than any job.
    """
    period = math.floor(math.log2(waited / _FIRST_PERIOD_SECONDS)) if waited >= _FIRST_PERIOD_SECONDS else -1
    return period >= 0 and period % 2 == 0 and bool(choices) and host in choices[period // 2 % len(choices)]


def can_claim(worker: Worker) -> bool:
    return worker.drained_at is None and worker.low_disk is None


def free_slots(workers: Sequence[Worker], held: Mapping[str | None, int]) -> list[Worker]:
    """Return each worker as often as it has free slots."""
    return [worker for worker in workers for _ in range(worker.slots - held.get(worker.name, 0))]


def _held(session: Session, host: str) -> dict[str | None, int]:
    counted = select(Job.worker, func.count()).where(
        Job.host == host, Job.state.in_(OWNED), Job.phase.is_distinct_from(WAITING_PHASE)
    )
    return dict(session.execute(counted.group_by(Job.worker)).all())


def _nodes(session: Session, array_id: str | None, *, lock: bool = False) -> list[Job]:
    """Return the nodes of an array by rank, with what is stored now; also those that were deleted."""
    query = select(Job).where(Job.array_id == array_id).order_by(Job.array_index)
    query = query.with_for_update() if lock else query
    return list(session.scalars(query, execution_options={"populate_existing": True}))


def others(session: Session, job: Job, states: Collection[JobState]) -> list[Job]:
    """Return the other nodes of a job that are in one of these states, locked; none if it is no node."""
    if job.nodes is None:
        return []
    return [node for node in _nodes(session, job.array_id, lock=True) if node.id != job.id and node.state in states]


def first_node(session: Session, job: Job) -> Job:
    """Return the node of rank 0."""
    return _nodes(session, job.array_id)[0]


def addresses(session: Session, job: Job) -> list[str | None]:
    """Return the addresses of the nodes by rank, if they are on several hosts; None: of one that has none any more."""
    nodes = _nodes(session, job.array_id)
    if len({node.host for node in nodes}) == 1:
        return []
    of_workers = dict(session.execute(select(Worker.name, Worker.nodes_address)).all())
    return [of_workers.get(node.worker or "") for node in nodes]


def may_launch(session: Session, job: Job) -> bool:
    """Return whether a prepared node may start: all are prepared, and that of rank 0, whose network it joins, runs."""
    ready = [
        node.phase == PREPARED_PHASE or node.state in {JobState.RUNNING, JobState.FINISHING}
        for node in _nodes(session, job.array_id)
    ]
    first = first_node(session, job)
    return all(ready) and (job.array_index == 0 or first.state is not JobState.STARTING)


def all_ended(session: Session, job: Job) -> bool:
    """Return whether the commands of all nodes have ended, so that `retry_decision` is the same for all."""
    return all(node.state not in {JobState.STARTING, JobState.RUNNING} for node in _nodes(session, job.array_id))


def failures(session: Session, array_ids: Collection[str]) -> dict[str | None, str]:
    """Describe, by array, the node for whose end all others have to end; arrays without one are left out."""
    out = or_(
        Job.state.in_([JobState.QUEUED, *TERMINAL - {JobState.SUCCEEDED}]),
        (Job.state == JobState.FINISHING) & Job.reason.not_in(_ENDS),
    )
    firsts = select(Job).where(Job.array_id.in_(array_ids), out).order_by(Job.array_index)
    failures: dict[str | None, str] = {}
    for job in session.scalars(firsts):
        if job.array_id not in failures:
            ended = _first_failure(session, job)
            failures[job.array_id] = describe(*ended) if ended else f"Rank {job.array_index} ended."
    return failures


def describe(job: Job, attempt: Attempt) -> str:
    why = reason_message(attempt.reason or "internal_error", attempt.reason_detail)
    return f"Rank {job.array_index}, on {attempt.host}: {why}"


class RetryDecision(NamedTuple):
    """A reason that decides whether all nodes of an array run again."""

    reason: Reason
    started: bool  # whether the command of one has
    closed: bool  # whether one has ended for good, so that they cannot start together any more


def retry_decision(session: Session, job: Job) -> RetryDecision | None:
    """Return the decision on the attempt of all nodes; None: none failed."""
    failure = _first_failure(session, job)
    if failure is None:
        return None
    all_nodes = _nodes(session, job.array_id)
    return RetryDecision(
        REASONS[failure[1].reason or "internal_error"],
        started=any(node.started_at is not None for node in all_nodes),
        closed=any(node.state in TERMINAL for node in all_nodes),
    )


def _first_failure(session: Session, job: Job) -> tuple[Job, Attempt] | None:
    """Return the node that ended the attempt of all, with its own.

    A fault of a machine comes before one of the job, since the loss of a host is found later than what it leads to.
    """

    def order(failed: tuple[Job, Attempt]) -> tuple[bool, bool, datetime | None, int | None]:
        reason = REASONS[failed[1].reason or "internal_error"]
        return (
            reason.name == _CAUSED,
            reason.fault not in INFRASTRUCTURE_FAULTS,
            failed[1].ended_at,
            failed[0].array_index,
        )

    return min(_failed(session, job), key=order, default=None)


def _failed(session: Session, job: Job) -> Iterator[tuple[Job, Attempt]]:
    of_nodes = select(Job, Attempt).join(Attempt, Attempt.job_id == Job.id)
    at_once = of_nodes.where(Job.array_id == job.array_id, Attempt.attempt == job.attempt)
    for node, attempt in session.execute(at_once):
        if attempt.reason is not None and attempt.reason not in _ENDS:
            yield node, attempt
