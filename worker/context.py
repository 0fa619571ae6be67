"""Shared state of a worker process: settings, database, stores, backends."""

import logging
import os
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import chain
from pathlib import Path
from threading import Lock
from typing import TypeVar

import psutil
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from core.catalogue.backends import capabilities_of, containers_offer, enabled_backends
from core.catalogue.machine_types import Catalogue, MachineType
from core.db.database import Database
from core.db.models.jobs import Job
from core.errors import StoreUnavailable
from core.formatting import MIB
from core.jobs import lifecycle, queries
from core.jobs.costs import limits
from core.jobs.costs.limits import Deadline
from core.jobs.scheduling import claims, repair_queries, workers
from core.jobs.scheduling.claims import WorkerOffer
from core.jobs.scheduling.port_allocations import PortRange
from core.security import api_keys
from core.settings import Settings
from core.storage.artifacts.factory import open_artifacts
from core.storage.stores import Stores
from core.storage.workspaces.limits import WorkspaceLimits
from core.system.canonical_host import is_loopback
from core.system.filesystem import describe_shortage
from worker.attempt.disk_reserve import DiskReserve
from worker.attempt.git_fetch import GitFetcher
from worker.attempt.outputs.metrics_flush import MetricsFlush
from worker.attempt.periodic import Schedule
from worker.attempt.scratch import Scratch
from worker.backends import make_backend
from worker.backends.base import Backend, ImageBackend
from worker.backends.nodes_address import nodes_address_problem
from worker.database_resource_inventory import DatabaseResourceInventory
from worker.environments.cache import EnvironmentCache
from worker.environments.default_environment import DefaultEnvironment
from worker.exec.job_sessions import JobSessions
from worker.service_link.artifacts import ServiceArtifacts
from worker.service_link.link import ServiceLink
from worker.service_link.logs import ServiceLogs
from worker.service_link.workspaces import ServiceWorkspaces

logger = logging.getLogger(__name__)

T = TypeVar("T")
_LEASE_SWEEPS = 3  # sweeps that the holder of a lease may miss
_NODES = "nodes together with other hosts"


@dataclass(kw_only=True)
class WorkerContext(Stores):
    worker_name: str
    hostname: str  # the machine's name; jobs of other workers on it can be adopted
    link: ServiceLink | None = None  # the way to the service; None: the worker has the service's folders
    scratch_bytes: int = 0  # disk space of all attempts' folders here, as last measured
    sessions: JobSessions = field(default_factory=JobSessions)  # exec sessions in the jobs of this worker
    schedule: Schedule = field(default_factory=Schedule)  # the periodic steps of this worker's jobs
    notify_host: Callable[[], None] = lambda: None  # wakes the supervisors of this host
    _backends: dict[str, Backend] = field(default_factory=dict)
    _unavailable_reasons: dict[str, str | None] = field(default_factory=dict)
    _lock: Lock = field(default_factory=Lock)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.metrics_flush = MetricsFlush(self.database, self.schedule)

    @classmethod
    def open(cls, settings: Settings, database: Database, *, worker_name: str, hostname: str) -> "WorkerContext":
        opened = cls(
            settings=settings,
            database=database,
            artifacts=open_artifacts(settings),
            worker_name=worker_name,
            hostname=hostname,
        )
        if settings.worker.service_url is not None:
            opened.link = ServiceLink.of(settings.worker.service_url, settings)
            opened.logs = ServiceLogs(settings.root / "logs", opened.link)
            opened.workspaces = ServiceWorkspaces(settings.root / "workspaces", opened.link)
            if settings.store.url is None:
                opened.artifacts = ServiceArtifacts(settings.root / "artifacts", opened.link)
        return opened

    @property
    def scratch_root(self) -> Path:
        return self.settings.root / "attempts"

    @cached_property
    def resource_inventory(self) -> DatabaseResourceInventory:
        """The database's record of billed cloud resources."""
        return DatabaseResourceInventory(self.database, self.hostname)

    @cached_property
    def fetcher(self) -> GitFetcher:
        return GitFetcher(self.settings, self._is_shared)

    @cached_property
    def environments(self) -> EnvironmentCache:
        """The Python environments of jobs without containers."""
        return EnvironmentCache(self.settings, self._is_shared)

    @cached_property
    def default_environment(self) -> DefaultEnvironment:
        """The packages of jobs without containers whose folder names none."""
        return DefaultEnvironment(self.settings.environments, self.environments)

    @property
    def enabled_backends(self) -> list[str]:
        """Names of the backends that this host runs, ready or not."""
        return enabled_backends(self.settings)

    def build_offer(self) -> WorkerOffer:
        """Build this worker's current offer: the capacity of its backends that are ready."""
        configured = self.settings.worker
        ready = [name for name in self.enabled_backends if self._is_backend_available(name)]
        nodes_address = self._nodes_address()
        refusals = [f"{name}: {why}" for name, why in self._unavailable_reasons.items() if why is not None]
        memory_mb = psutil.virtual_memory().total // MIB
        return WorkerOffer(
            worker=self.worker_name,
            host=self.hostname,
            backends=(*ready, *(containers_offer(name) for name in ready if self.backend(name).has_containers())),
            machine_types=None
            if configured.machine_types is None
            else tuple(machine_type.name for machine_type in self.machine_types()),
            gpus=self._gpus(ready) if configured.gpus is None else tuple(configured.gpus),
            cpus=configured.cpus or os.cpu_count() or 1,
            memory_mb=configured.memory_mb or memory_mb,
            ports=self._ports(),
            nodes_address=nodes_address,
            refusal="; ".join(refusals) or None,
        )

    def disk_shortage(self) -> str | None:
        """Return the reason that disk space is too low to claim a job; None if there is enough."""
        limits = self.settings.disk
        if limits.host_mb and self.scratch_bytes > limits.host_mb * MIB:
            taken = f"{self.scratch_bytes // MIB:,} MiB of {limits.host_mb:,} MiB"
            return f"the attempts on {self.hostname} take {taken} (GRADIENT_DISK__HOST_MB)"
        short = describe_shortage(self._disk_folders(), limits.min_free_mb)
        return None if short is None else f"{self.hostname}: {short}"

    @cached_property
    def disk_reserve(self) -> DiskReserve:
        """Watches the disks that the jobs of this host write to."""
        storage = self.settings.root / "storage"
        return DiskReserve([*self._disk_folders(), storage], storage, self.settings.disk.min_free_mb, self.schedule)

    def _disk_folders(self) -> list[Path]:
        engines = (keeper.data_folder() for keeper in self.image_backends())
        kept = [self.scratch_root, self.settings.root / "logs", self.settings.root / "artifacts"]
        return [*kept, *(folder for folder in engines if folder is not None)]

    def _ports(self) -> PortRange:
        ports, address = self.settings.ports, self.settings.ports_host
        if self.link is not None and is_loopback(address):
            address = ""  # a link to it would lead to its reader's machine
        return PortRange(ports.range_start, ports.range_end, address)

    def _nodes_address(self) -> str | None:
        address, problem = self.settings.worker.nodes_address, nodes_address_problem(self.settings)
        if problem != self._unavailable_reasons.get(_NODES):
            self._unavailable_reasons[_NODES] = problem
            logger.warning("nodes_refused" if problem else "nodes_taken", extra={"why": problem})
        return None if address is None or problem is not None else str(address)

    def is_still_ready(self, offer: WorkerOffer) -> bool:
        """Return whether jobs may run as processes here still: a second API key may be younger than the offer."""
        return "process" not in offer.backends or self._is_backend_available("process")

    def _is_backend_available(self, name: str) -> bool:
        reason = self.backend(name).unavailable_reason()
        if reason != self._unavailable_reasons.get(name):
            self._unavailable_reasons[name] = reason
            logger.warning("backend_not_ready" if reason else "backend_ready", extra={"backend": name, "why": reason})
        return reason is None

    def _gpus(self, ready: list[str]) -> tuple[str, ...] | None:
        """Return the GPUs that the backends find; None if no backend counts GPUs, as on simulated machines."""
        gpu_lists = [gpus for gpus in (self.backend(name).gpus() for name in ready) if gpus is not None]
        return tuple(dict.fromkeys(chain.from_iterable(gpu_lists))) if gpu_lists else None

    def taken_gpus(self, gpus: Collection[str]) -> dict[str, str]:
        """Return which of these GPUs something uses now, and what; for GPUs that no job of ours holds."""
        return self._describe_gpus(lambda backend: backend.taken_gpus(gpus))

    def broken_gpus(self, gpus: Collection[str]) -> dict[str, str]:
        """Return which of these GPUs are broken, and how that shows: now, or since a job was launched with them."""
        return self._describe_gpus(lambda backend: backend.broken_gpus(gpus))

    def _describe_gpus(self, describe: Callable[[Backend], dict[str, str]]) -> dict[str, str]:
        backends = map(self.backend, self.enabled_backends)
        return dict(
            chain.from_iterable(describe(backend).items() for backend in backends if backend.gpus() is not None)
        )

    def image_backends(self) -> list[ImageBackend]:
        backends = (self.backend(name) for name in self.enabled_backends)
        return [backend for backend in backends if isinstance(backend, ImageBackend)]

    def machine_types(self) -> list[MachineType]:
        """Return the machine types whose jobs this host takes."""
        catalogue = Catalogue.offered(self.settings)
        configured = self.settings.worker.machine_types
        if configured is not None:
            return [catalogue.get(name) for name in configured]
        return [
            machine_type
            for machine_type in catalogue
            if self.settings.backend_of(machine_type.backend) in self.enabled_backends
        ]

    @property
    def limits(self) -> WorkspaceLimits:
        return WorkspaceLimits(
            max_upload_bytes=self.settings.api.max_upload_bytes, max_bytes=self.settings.api.max_upload_bytes
        )

    def backend(self, name: str) -> Backend:
        with self._lock:
            if name not in self._backends:
                self._backends[name] = made = make_backend(name, self.settings, self.resource_inventory)
                made.shared = self._is_shared
            return self._backends[name]

    def _is_shared(self) -> bool:
        try:
            with self.database.read() as session:
                return api_keys.are_several(session)
        except (DBAPIError, StoreUnavailable):  # the database is away, or lets workers read no keys
            return True

    def scratch(self, job_id: str, attempt: int) -> Scratch:
        return Scratch(self.scratch_root, job_id, attempt)

    def is_held_afresh(self, job: Job) -> bool:
        """Return whether this worker holds a starting job, with a heartbeat as young as a running job's has to be.

        Then no other worker can adopt it soon, as after a renewal of its heartbeat, but without a commit.
        """
        try:
            with self.database.read() as session:
                return lifecycle.is_held(session, job, self.settings.worker.heartbeat_seconds)
        except StoreUnavailable:
            return False

    def claim(self, offer: WorkerOffer) -> Job | None:
        """Claim the next job that fits: in the database, or through the service, which is closer to that."""
        if self.link is None:
            return self.write(lambda session: claims.claim(session, offer))
        job_id = self.link.claim(offer)
        if job_id is None:
            return None
        with self.database.read() as session:
            return queries.get_row(session, job_id)

    def extend(self, job: Job) -> Deadline | None:
        """Ask for more time at the end of a job's share of a ceiling or a budget; None: there is none."""
        if self.link is None:
            extended = self.write(lambda session: limits.extend(session, job))
        elif self.link.extend(job.id):
            with self.database.read() as session:
                extended = queries.get_row(session, job.id)
        else:
            return None
        return None if extended is None else limits.deadline(extended)

    def claimed_with(self, job: Job, held: Collection[str]) -> list[Job]:
        """Return the members of its array that were claimed together with a job, without those that are held."""
        if job.array_id is None or not capabilities_of(job.backend).own_queue:
            return []
        with self.database.read() as session:
            jobs = workers.starting(session, self.worker_name, self.hostname, Job.array_id == job.array_id)
        return [other for other in jobs if other.id != job.id and other.id not in held]

    def leads(self, lease: str) -> bool:
        """Take or renew a lease on repairs; another worker gets it if this one misses a few sweeps."""
        seconds = _LEASE_SWEEPS * self.settings.worker.sweep_seconds
        holder = self.worker_name
        return self.write(partial(repair_queries.try_become_leader, name=lease, holder=holder, seconds=seconds))

    def write(self, action: Callable[[Session], T]) -> T:
        """Run one short transaction."""
        with self.database.write() as session:
            return action(session)
