"""Wait status of queued jobs: the reason, the queue position, and an estimate of the start.

The first reason that applies is reported:

    no_worker            no live worker offers the machine type
    too_large            each of those workers is too small for the job
    draining             each of the large enough ones is drained
    low_disk             each of those not drained has too little disk space
    retrying             the job pauses before its next attempt
    project_quota        its project has reached its limit of running jobs
    waiting_for_gpus    no worker has as many free GPUs as it needs
    waiting_for_port     on each host, another job has a port that it names
    behind_jobs          other jobs are ahead of it
    waiting_for_machine  it is next

A job that a worker holds does not wait; `worker_silent` is added by `service.presenters.jobs`.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any

from sqlalchemy import Row, Select, select, union_all
from sqlalchemy.orm import Session

from core.db.database import now
from core.db.models.jobs import GpuAllocation, Job, Worker
from core.jobs.scheduling import start_estimate
from core.jobs.scheduling.allocations import held_ports
from core.jobs.scheduling.capacity import Offers, excess, fits, offers, room
from core.jobs.scheduling.queue_position import Place, Share, places_of
from core.jobs.states import OWNED, JobState

HISTORY = 100
"""Most recent ended jobs of a machine type that an estimate is based on."""
_HELD = select(Job.machine_type, Job.project_id, Job.worker, Job.host, Job.started_at, Job.cpus, Job.memory_mb).where(
    Job.state.in_(OWNED)
)
_HeldRow = Row[str, str, str | None, str | None, datetime | None, float | None, int | None]
_HELD_GPUS = select(GpuAllocation.host, GpuAllocation.gpu)


@dataclass(frozen=True, slots=True)
class Waiting:
    """The wait status of a job.

    Attributes:
        reason: The reason's name.
        detail: Details for the reason's sentence, if any.
        position: Queue position among the jobs of its machine type; 1 is next.
        starts_at: Estimated start, from the durations of the last jobs of its machine type, the running jobs and its
            position. None if there is too little history, or no worker to run it.
    """

    reason: str
    detail: str | None
    position: int
    starts_at: datetime | None


def waiting(session: Session, job: Job) -> Waiting:
    """Return the wait status of a queued job."""
    return waiting_of(session, [job])[job.id]


def waiting_of(session: Session, jobs: Iterable[Job]) -> dict[str, Waiting]:
    """Return the wait status of the queued jobs among these, by id; the number of queries is constant."""
    queued = [job for job in jobs if job.state == JobState.QUEUED]
    if not queued:
        return {}
    places = places_of(session, queued)
    scene = _look(session, queued, places)
    return {job.id: scene.waiting(job) for job in queued}


def said_at(moment: datetime) -> str:
    """Format a time for a sentence."""
    return f"{moment:%Y-%m-%d %H:%M:%S} UTC"


def _look(session: Session, queued: Sequence[Job], places: dict[str, Place]) -> "_Scene":
    at = session.scalars(select(now())).one()
    held = list(session.execute(_HELD))
    types = {job.machine_type for job in queued} | {row.machine_type for row in held}
    gpus: dict[str, set[str]] = defaultdict(set)
    if any(job.gpus for job in queued):
        for row in session.execute(_HELD_GPUS):
            gpus[row.host].add(row.gpu)
    ports = held_ports(session) if any(job.spec.ports for job in queued) else {}
    return _Scene(at, places, offers(session), held, _typical(session, sorted(types)), gpus, ports)


def _typical(session: Session, types: Sequence[str]) -> dict[str, float]:
    """Return the median duration of jobs by machine type, in seconds; types with too little history are left out."""
    durations: dict[str, list[float]] = defaultdict(list)
    for row in session.execute(union_all(*(select(_last(one).subquery()) for one in types))):
        durations[row.machine_type].append(max(0.0, (row.ended_at - row.started_at).total_seconds()))
    known = {one: start_estimate.typical(some) for one, some in durations.items()}
    return {one: lasts for one, lasts in known.items() if lasts is not None}


def _last(machine_type: str) -> Select[str, datetime | None, datetime | None]:
    ran = (Job.machine_type == machine_type, Job.started_at.is_not(None), Job.ended_at.is_not(None))
    columns = select(Job.machine_type, Job.started_at, Job.ended_at)
    return columns.where(*ran).order_by(Job.ended_at.desc()).limit(HISTORY)


@dataclass(frozen=True)
class _Scene:
    """The rows needed to explain why a set of jobs is waiting.

    Attributes:
        at: Now, by the database's clock.
        places: Queue positions of the jobs, by id.
        offers: The live workers.
        held: Jobs that workers hold.
        typical: Median duration of jobs, by machine type.
        gpus: GPUs that jobs hold, by host.
        ports: Job id by port, by host.
    """

    at: datetime
    places: dict[str, Place]
    offers: Offers
    held: Sequence[_HeldRow]
    typical: dict[str, float]
    gpus: Mapping[str, set[str]]
    ports: Mapping[str, Mapping[int, str]]

    def waiting(self, job: Job) -> Waiting:
        """Return the wait status of one of the jobs."""
        # A job without a place was claimed meanwhile, so it was next.
        place = self.places.get(job.id, Place(1, 0, Share()))
        offering = self.offers.of(job.machine_type, job.backend)
        large = [worker for worker in offering if fits(worker, job)]
        working = [worker for worker in large if worker.drained_at is None]
        reason, detail = self._hindrance(job, offering, large, working) or self._turn(job, place, working)
        return Waiting(reason, detail, place.number, self._starts_at(job, place, working))

    def _hindrance(
        self, job: Job, offering: Sequence[Worker], large: Sequence[Worker], working: Sequence[Worker]
    ) -> tuple[str, str | None] | None:
        """Return reason and detail if no worker could take the job whatever its position, else None."""
        if not offering:
            return "no_worker", None
        if not large:
            return "too_large", excess(job, offering)
        if not working:
            return "draining", None
        full = [worker.low_disk for worker in working if worker.low_disk is not None]
        if len(full) == len(working):
            return "low_disk", full[0]
        if job.run_after is not None and job.run_after > self.at:
            ended = f"{job.reason_detail} " if job.reason_detail else ""
            return "retrying", f"{ended}The next try is at {said_at(job.run_after)}."
        return None

    def _turn(self, job: Job, place: Place, working: Sequence[Worker]) -> tuple[str, str | None]:
        """Return reason and detail of a job that some worker could take."""
        if place.share.used_up:
            return "project_quota", f"{place.share.running} of {place.share.max_running} jobs"
        most = max(working, key=self._free_gpus)
        if self._free_gpus(most) < job.gpus:
            return "waiting_for_gpus", self._gpus_of(job, most)
        port = self._port_of_another(job, working)
        if port is not None:
            return "waiting_for_port", port
        if place.number > 1:
            ahead = place.number - 1
            return "behind_jobs", f"{ahead:,} job{'s' if ahead > 1 else ''}"
        return "waiting_for_machine", None

    def _free_gpus(self, worker: Worker) -> float:
        if worker.gpus is None:
            return float("inf")
        return len(set(worker.gpus) - self.gpus.get(worker.host, set()) - self._taken(worker).keys())

    def _taken(self, worker: Worker) -> dict[str, str]:
        """Return the GPUs of a worker that are in use outside this service, and by what."""
        held = self.gpus.get(worker.host, set())
        return {gpu: why for gpu, why in (worker.taken_gpus or {}).items() if gpu not in held}

    def _gpus_of(self, job: Job, worker: Worker) -> str:
        free, total, taken = int(self._free_gpus(worker)), len(worker.gpus or ()), self._taken(worker)
        needs = "a GPU" if job.gpus == 1 else f"{job.gpus} GPUs of one machine"
        others = "; ".join(f"GPU {gpu} is used by something that is no job ({why})" for gpu, why in taken.items())
        hold = "jobs hold the others" if free + len(taken) < total else ""
        who = "; ".join(part for part in (others, hold) if part)
        return f"{needs}; {free} of {total} {'is' if free == 1 else 'are'} free on {worker.host}, {who}"

    def _port_of_another(self, job: Job, working: Sequence[Worker]) -> str | None:
        """Describe the port that the job waits for; None if on some host all that it names are free."""
        found = None
        named = [port.external for port in job.spec.asked_ports() if port.external]
        for worker in working if named else ():
            held = self.ports.get(worker.host, {})
            kept = next((port for port in named if port in held), None)
            if kept is None:
                return None
            found = f"port {kept} of {worker.host}, which job {held[kept]} has"
        return found

    def _starts_at(self, job: Job, place: Place, working: Sequence[Worker]) -> datetime | None:
        lasts = self.typical.get(job.machine_type)
        if lasts is None or not working:
            return None
        inside = self._pool_starts(job, working, lasts).get(place.number)
        allowed = self._quota_start(place, job.project_id, lasts)
        if inside is None or allowed is None:
            return None
        starts_at = (self.at + timedelta(seconds=max(inside, allowed))).replace(microsecond=0)
        return max(starts_at, job.run_after) if job.run_after else starts_at

    def _pool_starts(self, job: Job, working: Sequence[Worker], lasts: float) -> dict[int, float]:
        """Return the seconds until each requested place of the pool is served, for jobs with the needs of this one."""
        need = (job.machine_type, job.backend, job.gpus, job.cpus, job.memory_mb)
        if need not in self._known:
            free_in = [free for worker in working for free in self._slots(worker, job, lasts)]
            self._known[need] = start_estimate.starts(
                free_in, lasts, {place.number for place in self.places.values()} | {1}
            )
        return self._known[need]

    @cached_property
    def _known(self) -> dict[tuple[Any, ...], dict[int, float]]:
        return {}

    def _slots(self, worker: Worker, job: Job, lasts: float) -> list[float]:
        """Return the seconds until each of the worker's slots for jobs like this one is free."""
        busy = [self._left(row, lasts) for row in self.held if row.worker == worker.name]
        on_host = [row for row in self.held if row.host == worker.host]
        idle = [worker.slots - len(busy)]
        if worker.gpus is not None and job.gpus:
            idle.append(int(self._free_gpus(worker)) // job.gpus)
        if worker.cpus is not None and job.cpus:
            idle.append(int((worker.cpus - sum(row.cpus or 0 for row in on_host)) // job.cpus))
        if worker.memory_mb is not None and job.memory_mb:
            idle.append((worker.memory_mb - sum(row.memory_mb or 0 for row in on_host)) // job.memory_mb)
        return start_estimate.slots(max(0, min(idle)), busy, room(worker, job))

    def _quota_start(self, place: Place, project_id: str, lasts: float) -> float | None:
        """Return the seconds until the project's quota allows this job; None: never."""
        share = place.share
        if share.max_running is None:
            return 0.0
        busy = [self._left(row, lasts) for row in self.held if row.project_id == project_id]
        free_in = start_estimate.slots(max(0, share.max_running - len(busy)), busy, share.max_running)
        return start_estimate.starts(free_in, lasts, [place.rank + 1]).get(place.rank + 1)

    def _left(self, row: _HeldRow, lasts: float) -> float:
        """Estimate the seconds until a running job ends; without history of its machine type it lasts `lasts`."""
        elapsed = (self.at - row.started_at).total_seconds() if row.started_at else 0.0
        return start_estimate.left(self.typical.get(row.machine_type, lasts), elapsed)
