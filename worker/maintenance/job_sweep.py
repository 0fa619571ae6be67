"""Periodic repairs: lost workers, stray processes, old scratch folders, deleted jobs, expired outputs.

Each repair may run on any worker, any number of times.
"""

import logging
import time
from collections.abc import Collection
from functools import partial

from sqlalchemy import or_, select

from core.db.ballast import keep_ballast
from core.db.models.jobs import Job
from core.errors import StoreUnavailable
from core.jobs import queries
from core.jobs.scheduling import repair_queries
from core.jobs.scheduling.shared_repairs import SharedRepairs
from core.jobs.states import OWNED, TERMINAL
from core.jobs.tracking import metrics
from core.storage import retention
from core.storage.prune import FREED_AFTER_SECONDS, prune
from core.system.untrusted_folders import measure_used_bytes
from worker.attempt.scratch import Scratch, list_scratch_folders
from worker.attempt.spans import AttemptSpans
from worker.backends.base import Backend, Handle, LaunchError
from worker.context import WorkerContext
from worker.environments.default_environment import service_python
from worker.maintenance.cloud_orphans import CloudSweep
from worker.service_link.artifacts import ServiceArtifacts

logger = logging.getLogger(__name__)

_LEASE_NAME = "sweep"
_OUTPUTS_LEASE_NAME = "outputs"  # of what only a worker that has the service's folders can do
UPLOAD_LEFTOVER_SECONDS = 24 * 3600
HOST_LOST_SECONDS = 24 * 3600  # a host silent for this long is not expected to return and clean up its attempts
PRUNE_INTERVAL_SECONDS = 3600.0
PRUNE_SECONDS = 20.0
"""Longest time that deletions, by policy or of deleted jobs, delay the other repairs; the next sweep continues."""

_EVICT_INTERVAL_SECONDS = 600.0


class Sweep:
    """The repairs of one host, and those of `SharedRepairs`."""

    def __init__(self, context: WorkerContext) -> None:
        self._context = context
        self._cloud_sweep = CloudSweep(context)
        self._shared = SharedRepairs(
            context.database,
            context.settings,
            lease=_LEASE_NAME,
            holder=context.worker_name,
            host=context.hostname,
            on_lost=lambda job: AttemptSpans(job).emit_run(job, "worker_lost"),
        )
        self._refused_at: dict[str, float] = {}
        self.prune_at = self._evict_at = 0.0

    def defer_lost_detection(self) -> None:
        """Wait again before declaring hosts lost: they could not send heartbeats."""
        self._shared.defer_lost_detection()

    def run(self, held: Collection[tuple[str, int]]) -> dict[str, int]:
        """Run the repairs of this host and, if this worker holds their lease, those that all hosts share.

        `held`: job id and attempt of what this worker runs now: an attempt's thread cleans up after itself. It may be
        outdated, as the database says which attempts are over. Returns number of repairs by kind.
        """
        keep_ballast(self._context.database)
        if self._context.settings.disk.host_mb and self._context.scratch_root.is_dir():
            used = measure_used_bytes([self._context.scratch_root])
            self._context.scratch_bytes = self._context.scratch_bytes if used is None else used
        repaired = {
            "scratch": self._remove_scratch(held),
            "strays": self._destroy_orphans(held),
            "images": self.prune_images(),
            "environments": self._evict_environments(),
            "uploads": self._context.workspaces.sweep_temporary(UPLOAD_LEFTOVER_SECONDS)
            + self._context.storage.sweep_incoming(UPLOAD_LEFTOVER_SECONDS),
        }
        repaired |= self._cloud_sweep.run()
        if self._context.link is None:  # else the service makes those that all hosts share
            repaired |= self._shared.run()
            if self._context.leads(_OUTPUTS_LEASE_NAME):
                repaired |= {"deleted_jobs": self._remove_deleted_outputs(), "retention": self._prune()}
        if any(repaired.values()):
            logger.info("swept", extra=repaired)
            self._context.write(
                partial(repair_queries.count_repairs, worker=self._context.worker_name, repaired=repaired)
            )
        return repaired

    def prune_images(self) -> int:
        """Remove images by disk usage and age; return how many."""
        try:
            return sum(len(backend.prune_images(everything=False)) for backend in self._context.image_backends())
        except LaunchError as error:
            logger.warning("images_not_pruned", extra={"error": str(error)})
            return 0

    def _evict_environments(self) -> int:
        """Remove Python environments by age and disk usage, every ten minutes; return how many."""
        if time.monotonic() < self._evict_at:
            return 0
        self._evict_at = time.monotonic() + _EVICT_INTERVAL_SECONDS
        default = self._context.default_environment.wanted(service_python())
        try:
            return self._context.environments.evict(lambda folder: measure_used_bytes([folder]), keep=default)
        except Exception:  # a failure here must not prevent the other repairs
            logger.exception("environments_not_removed")
            return 0

    def _remove_scratch(self, held: Collection[tuple[str, int]]) -> int:
        """Destroy and remove attempts that are over, except those that another living host is to clean up.

        An attempt whose job is not in this database is left alone: the folder may belong to another database. Hosts may
        share the folder, but only the host that ran an attempt can end the processes it left, and it finds them by the
        scratch folder.
        """
        finished = [
            (job_id, attempt)
            for job_id, attempt in list_scratch_folders(self._context.scratch_root)
            if (job_id, attempt) not in held and self._is_finished(job_id, attempt)
        ]
        handles = self._list_handles() if finished else None
        if handles is None:
            return 0
        count = 0
        for job_id, attempt in finished:
            scratch = self._context.scratch(job_id, attempt)
            left = [(backend, handle) for backend, handle in handles if handle["name"] == scratch.name]
            if all(self._destroy(backend, handle) for backend, handle in left):
                if isinstance(self._context.artifacts, ServiceArtifacts):  # those of a lost job were never sent
                    self._context.artifacts.remove_attempt(job_id, attempt)
                count += _remove_scratch_folder(scratch)
        return count

    def _destroy_orphans(self, held: Collection[tuple[str, int]]) -> int:
        """Destroy what runs without a scratch folder: it was removed, or a late start came after its removal."""
        orphans = [
            (backend, handle)
            for backend, handle in self._list_handles() or ()
            if (handle["job_id"], handle["attempt"]) not in held
            and not self._context.scratch(handle["job_id"], handle["attempt"]).root.exists()
            and self._is_finished(handle["job_id"], handle["attempt"])
        ]
        return sum(self._destroy(backend, handle) for backend, handle in orphans)

    def _is_finished(self, job_id: str, attempt: int) -> bool:
        """Return whether an attempt is over, for good: no later claim or adoption takes it up again.

        The next claim may take up an attempt that a restored database does not know yet.
        """
        with self._context.database.read() as session:
            job = queries.get_row(session, job_id)
            if job is None:
                return False
            follows = attempt > job.attempt and job.state not in TERMINAL
            if follows or (attempt == job.attempt and job.state in OWNED):
                return False
            hostname = self._context.hostname
            return not queries.runs_on_other_host(session, job_id, attempt, hostname, seconds=HOST_LOST_SECONDS)

    def _list_handles(self) -> list[tuple[Backend, Handle]] | None:
        """List the handles of this host's backends; None if a backend does not answer."""
        try:
            backends = [self._context.backend(name) for name in self._context.enabled_backends]
            return [(backend, handle) for backend in backends for handle in backend.owned()]
        except LaunchError as error:
            logger.warning("orphans_not_listed", extra={"error": str(error)})
            return None

    def _destroy(self, backend: Backend, handle: Handle) -> bool:
        """Destroy an attempt that is over: outputs that its cloud keeps stay there, since nothing here stores them."""
        try:
            backend.destroy(handle | {"over": True})
        except LaunchError:
            logger.warning("orphan_not_destroyed", exc_info=True)
            return False
        return True

    def _remove_deleted_outputs(self) -> int:
        """Remove the logs, artifacts and metrics of deleted jobs; their rows stay."""
        left = or_(Job.logs_removed_at.is_(None), Job.artifacts_removed_at.is_(None))
        deleted = select(Job.id).where(Job.deleted_at.is_not(None), Job.state.in_(TERMINAL), left)
        with self._context.database.read() as session:
            jobs = list(session.scalars(deleted))
        began, count = time.monotonic(), 0
        self._refused_at = {job_id: at for job_id in jobs if (at := self._refused_at.get(job_id)) is not None}
        for job_id in jobs:
            if time.monotonic() - began >= PRUNE_SECONDS:  # the next sweep continues
                break
            if began - self._refused_at.get(job_id, -PRUNE_INTERVAL_SECONDS) >= PRUNE_INTERVAL_SECONDS:
                count += self._remove_outputs(job_id)
        if count:  # their archives follow
            self.prune_at = min(self.prune_at, time.monotonic() + FREED_AFTER_SECONDS)
        return count

    def _remove_outputs(self, job_id: str) -> bool:
        """Remove all outputs of a deleted job; return False on failure, which must not prevent the other repairs."""
        try:
            self._context.logs.remove(job_id)
            self._context.artifacts.remove(job_id)
        except (OSError, StoreUnavailable):  # as from a bucket that refuses to delete
            logger.warning("outputs_not_removed", exc_info=True, extra={"job_id": job_id})
            self._refused_at[job_id] = time.monotonic()
            return False
        metrics.remove(self._context.database, job_id)
        self._context.write(partial(retention.mark_outputs_removed, job_id=job_id))
        return True

    def _prune(self) -> int:
        """Delete expired logs, artifacts and archives, once an hour; return how many."""
        if time.monotonic() < self.prune_at:
            return 0
        report = prune(self._context, seconds=PRUNE_SECONDS)
        if not report.more:
            self.prune_at = time.monotonic() + PRUNE_INTERVAL_SECONDS
        return report.total.count


def _remove_scratch_folder(scratch: Scratch) -> bool:
    """Remove a scratch folder; return False on failure, which must not prevent the other repairs."""
    try:
        scratch.remove()
    except (OSError, RecursionError):
        logger.warning("scratch_not_removed", exc_info=True, extra={"scratch": scratch.name})
        return False
    return True
