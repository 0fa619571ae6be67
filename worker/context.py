"""Shared state of a worker process: settings, database, stores, backends."""

import logging
import os
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from pathlib import Path
from threading import Lock
from typing import TypeVar

import psutil
from sqlalchemy.orm import Session

from core.catalogue.backends import offered
from core.catalogue.machine_types import Catalogue, MachineType
from core.db.database import Database
from core.formatting import MIB
from core.jobs.scheduling.allocations import PortRange
from core.jobs.scheduling.claims import Offer
from core.settings import Settings
from core.storage.archives import ArchiveLimits
from core.storage.artifacts.factory import open_artifacts
from core.storage.stores import Stores
from core.system.filesystem import shortage
from worker.attempt.git_fetch import Fetcher
from worker.attempt.scratch import Scratch
from worker.backends import make_backend
from worker.backends.base import Backend, ImageKeeper
from worker.resource_log import DatabaseLedger
from worker.storage import Storage

logger = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(kw_only=True)
class Host(Stores):
    """The stores and backends of one worker.

    Attributes:
        name: The worker's name, which its jobs are held under.
        host: The machine's name; jobs of other workers on it can be adopted.
    """

    name: str
    host: str
    attempts_bytes: int = 0
    """Disk space of all attempts' folders here, as last measured."""
    _backends: dict[str, Backend] = field(default_factory=dict)
    _unready: dict[str, str | None] = field(default_factory=dict)
    _lock: Lock = field(default_factory=Lock)

    @classmethod
    def open(cls, settings: Settings, database: Database, *, name: str, host: str) -> "Host":
        """Open the stores that the settings name."""
        return cls(settings=settings, database=database, artifacts=open_artifacts(settings), name=name, host=host)

    @property
    def attempts(self) -> Path:
        """The folder of the scratch directories."""
        return self.settings.root / "attempts"

    @property
    def storage(self) -> Storage:
        """The folders that jobs share as `/storage`."""
        return Storage(self.settings.root / "storage")

    @cached_property
    def ledger(self) -> DatabaseLedger:
        """The database's record of billed cloud resources."""
        return DatabaseLedger(self.database, self.host)

    @cached_property
    def fetcher(self) -> Fetcher:
        """The fetcher of git workspaces."""
        fetcher = Fetcher(self.settings)
        if fetcher.uncontained is not None:
            logger.warning(
                "git_not_contained: git for jobs runs as the worker's own user. Install bubblewrap, or set "
                "GRADIENT_WORKER__SANDBOX=off to have it so.",
                extra={"why": fetcher.uncontained},
            )
        return fetcher

    @property
    def offered(self) -> list[str]:
        """Names of the backends that this host runs, ready or not."""
        return offered(self.settings)

    def offer(self) -> Offer:
        """Build this worker's current offer: the capacity of its backends that are ready.

        Raises:
            MachineTypeUnknown: The settings name a machine type that is not in the catalogue.
        """
        asked = self.settings.worker
        ready = [name for name in self.offered if self._is_ready(name)]
        memory_mb = psutil.virtual_memory().total // MIB
        return Offer(
            worker=self.name,
            host=self.host,
            backends=tuple(ready),
            machine_types=None if asked.machine_types is None else tuple(one.name for one in self.takes()),
            gpus=self._gpus(ready) if asked.gpus is None else tuple(asked.gpus),
            image_wait_seconds=self.settings.images.affinity_seconds if self.image_keepers() else 0.0,
            cpus=asked.cpus or os.cpu_count() or 1,
            memory_mb=asked.memory_mb or memory_mb,
            ports=self._ports(),
        )

    def shortage(self) -> str | None:
        """Return the reason that disk space is too low to claim a job; None if there is enough."""
        limits, root = self.settings.disk, self.settings.root
        if limits.host_mb and self.attempts_bytes > limits.host_mb * MIB:
            taken = f"{self.attempts_bytes // MIB:,} MiB of {limits.host_mb:,} MiB"
            return f"the attempts on {self.host} take {taken} (GRADIENT_DISK__HOST_MB)"
        engines = (keeper.data_folder() for keeper in self.image_keepers())
        folders = [self.attempts, root / "logs", root / "artifacts", *(one for one in engines if one is not None)]
        short = shortage(folders, limits.min_free_mb)
        return None if short is None else f"{self.host}: {short}"

    def _ports(self) -> PortRange:
        ports = self.settings.ports
        return PortRange(ports.range_start, ports.range_end, self.settings.ports_host)

    def _is_ready(self, name: str) -> bool:
        why = self.backend(name).unready()
        if why != self._unready.get(name):
            self._unready[name] = why
            logger.warning("backend_not_ready" if why else "backend_ready", extra={"backend": name, "why": why})
        return why is None

    def _gpus(self, ready: list[str]) -> tuple[str, ...] | None:
        """Return the GPUs that the backends find; None if no backend counts GPUs, as on simulated machines."""
        found = [gpus for gpus in (self.backend(name).gpus() for name in ready) if gpus is not None]
        return tuple(dict.fromkeys(chain.from_iterable(found))) if found else None

    def taken_gpus(self, gpus: Collection[str]) -> dict[str, str]:
        """Return which of these GPUs something uses now, and what; for GPUs that no job of ours holds.

        Args:
            gpus: GPUs that are free according to the database.
        """
        found: dict[str, str] = {}
        for name in self.offered:
            backend = self.backend(name)
            if backend.gpus() is not None:
                found |= backend.taken_gpus(gpus)
        return found

    def image_keepers(self) -> list[ImageKeeper]:
        """Return the backends of this host that keep images on it."""
        backends = (self.backend(name) for name in self.offered)
        return [backend for backend in backends if isinstance(backend, ImageKeeper)]

    def takes(self) -> list[MachineType]:
        """Return the machine types whose jobs this host takes.

        Raises:
            MachineTypeUnknown: The settings name a machine type that is not in the catalogue.
        """
        catalogue = Catalogue.load(override_path=self.settings.machines.file)
        named = self.settings.worker.machine_types
        if named is not None:
            return [catalogue.get(name) for name in named]
        return [one for one in catalogue if self.settings.backend_of(one.backend) in self.offered]

    @property
    def limits(self) -> ArchiveLimits:
        """Size limits of a workspace."""
        return ArchiveLimits(
            max_upload_bytes=self.settings.api.max_upload_bytes, max_bytes=self.settings.api.max_unpacked_bytes
        )

    def backend(self, name: str) -> Backend:
        """Return the backend of this name, created on first use."""
        with self._lock:
            if name not in self._backends:
                self._backends[name] = make_backend(name, self.settings, self.ledger)
            return self._backends[name]

    def scratch(self, job_id: str, attempt: int) -> Scratch:
        """The scratch directory of one attempt."""
        return Scratch(self.attempts, job_id, attempt)

    def write(self, action: Callable[[Session], T]) -> T:
        """Run one short transaction.

        Raises:
            StoreUnavailable: The database does not answer.
            LeaseLost: Another worker holds the job now.
        """
        with self.database.write() as session:
            return action(session)
