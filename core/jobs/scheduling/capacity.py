from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import or_, select
from sqlalchemy.orm import Session

from core.catalogue.backends import containers_offer
from core.db.database import now
from core.db.models.jobs import Job, Worker
from core.jobs.queries import WORKER_STALE_SECONDS

_IS_LIVE = Worker.seen_at >= now(-WORKER_STALE_SECONDS)
_WORKERS = select(Worker, _IS_LIVE).where(or_(_IS_LIVE, Worker.refusal.is_not(None))).order_by(Worker.name)
_MAX_REFUSALS = 3  # that are named to a user


@dataclass(frozen=True, slots=True)
class LiveWorkers:
    """The workers with a recent heartbeat, including drained ones."""

    workers: tuple[Worker, ...]
    refusing: tuple[Worker, ...]  # those with a refusal, living or not

    def for_machine_type(self, machine_type: str, backend: str) -> list[Worker]:
        """Return the workers that take jobs of this machine type, or would if they were not drained."""
        return [worker for worker in self.workers if backend in worker.backends and _takes(worker, machine_type)]

    def lack_containers(self, machine_type: str, backend: str) -> bool:
        """Return whether no job of this machine type can have a container where they are optional."""
        workers = self.for_machine_type(machine_type, backend)
        return bool(workers) and not any(containers_offer(backend) in worker.backends for worker in workers)

    def explain_refusals(self, job: Job) -> str | None:
        """Return why workers that may have been meant for such jobs take none; None: there are no such workers."""
        suited = (
            worker
            for worker in self.refusing
            if job.backend not in worker.backends and _takes(worker, job.machine_type)
        )
        reported = [
            f"Worker {worker.name} does not take such jobs ({(worker.refusal or '').rstrip('.')})"
            for worker in suited
            if fits(worker, job)
        ]
        return ". ".join(reported[:_MAX_REFUSALS]) or None

    def free_slots(self, machine_type: str, backend: str, held: Mapping[str | None, int]) -> int:
        """Count the jobs of this machine type that could start now, if none of them needs a GPU that is in use."""
        working = (worker for worker in self.for_machine_type(machine_type, backend) if worker.drained_at is None)
        return sum(max(0, worker.slots - held.get(worker.name, 0)) for worker in working)

    def available(self, machine_type: str, backend: str) -> bool:
        return any(worker.drained_at is None for worker in self.for_machine_type(machine_type, backend))


def live_workers(session: Session) -> LiveWorkers:
    rows = session.execute(_WORKERS).all()
    live, refusing = (
        (worker for worker, is_live in rows if is_live),
        (worker for worker, _ in rows if worker.refusal is not None),
    )
    return LiveWorkers(tuple(live), tuple(refusing))


def _takes(worker: Worker, machine_type: str) -> bool:
    return worker.machine_types is None or machine_type in worker.machine_types


def fits(worker: Worker, job: Job) -> bool:
    """Check whether the worker's machine is large enough for the job if nothing else runs there."""
    return all(has is None or needs <= has for _, needs, has in _needs(worker, job))


def job_capacity(worker: Worker, job: Job) -> int:
    """Return how many jobs like this one the worker can run at once."""
    return joint_capacity([worker], job)


def joint_capacity(workers: Sequence[Worker], job: Job) -> int:
    """Return how many jobs like this one the workers of one host, which share it, can run at once."""
    counts = [int(has // needs) for _, needs, has in _needs(workers[0], job) if has is not None and needs]
    return min([sum(worker.slots for worker in workers), *counts])


def unusable_gpus(worker: Worker) -> dict[str, str]:
    """Return the GPUs that jobs cannot get though none holds them, each with the reason."""
    taken = {gpu: f"in use outside this service ({why})" for gpu, why in (worker.taken_gpus or {}).items()}
    return taken | {gpu: f"broken ({why})" for gpu, why in (worker.gpu_faults or {}).items()}


def by_host(workers: Iterable[Worker]) -> dict[str, list[Worker]]:
    of_hosts: dict[str, list[Worker]] = {}
    for worker in workers:
        of_hosts.setdefault(worker.host, []).append(worker)
    return of_hosts


def joined_workers(job: Job, workers: Iterable[Worker]) -> list[Worker]:
    """Return those of these workers that may run nodes of a job on several hosts, which reach each other.

    An address that two hosts name is not one at which they reach each other.
    """
    if job.spec.network is not None:
        return []
    joined = [worker for worker in workers if worker.nodes_address is not None]
    hosts = {(worker.nodes_address, worker.host) for worker in joined}
    count = Counter(address for address, _ in hosts)
    return [worker for worker in joined if count[worker.nodes_address] == 1]


def explain_too_many_nodes(job: Job, workers: Sequence[Worker]) -> str | None:
    """Describe how many nodes of a job are too many for each host of these workers; None: there is room for them."""
    if job.nodes is None:
        return None
    hosts = by_host(workers)
    most, host = max((joint_capacity(its, job), host) for host, its in hosts.items())
    together = sum(joint_capacity(its, job) for its in by_host(joined_workers(job, workers)).values())
    if job.nodes <= max(most, together):
        return None
    if together > most:
        return f"{job.nodes:,} nodes, but the machines that can share a job's nodes have room for only {together:,}"
    room = "any" if most == 0 else f"more than {most:,} ({host})"
    several = "" if len(hosts) == 1 else ", or on several that have GRADIENT_WORKER__NODES_ADDRESS set"
    refusals = [
        f"; worker {worker.name} takes no {worker.refusal.rstrip('.')}"
        for worker in workers
        if worker.refusal is not None
    ]
    return (
        f"{job.nodes:,} nodes, which must start together on one machine{several}, but no machine has room for "
        f"{room}{''.join(refusals[:_MAX_REFUSALS])}"
    )


def explain_too_large(job: Job, workers: Sequence[Worker]) -> str:
    """Describe what a job requests that none of these workers has, e.g. `64 CPUs, but the largest worker … has 16`.

    `workers`: all workers of its machine type; it fits none of them.
    """
    shortages = []
    requested = [_needs(worker, job) for worker in workers]
    for needed in zip(*requested, strict=True):
        unit, needs, _ = needed[0]
        largest = max((has for _, _, has in needed if has is not None), default=0)
        if needs > largest and all(has is not None for _, _, has in needed):
            shortages.append(
                f"{_format_amount(needs, unit)}, but the largest worker of its machine type has {largest:,.10g}"
            )
    if shortages:
        return "; ".join(shortages)
    wanted = " and ".join(_format_amount(needs, unit) for unit, needs, _ in requested[0] if needs)
    return f"{wanted}, but no single worker of its machine type has all of that"


def _needs(worker: Worker, job: Job) -> tuple[tuple[str, float, float | None], ...]:
    """Return (unit, needed by the job, capacity of the worker) tuples; capacity None: not counted."""
    gpus = None if worker.gpus is None else len(worker.gpus)
    return (
        ("GPU", job.gpus, gpus),
        ("CPU", job.cpus or 0, worker.cpus),
        ("MiB of memory", job.memory_mb or 0, worker.memory_mb),
    )


def _format_amount(number: float, unit: str) -> str:
    plural = "s" if number != 1 and unit in {"GPU", "CPU"} else ""
    return f"{number:,.10g} {unit}{plural}"
