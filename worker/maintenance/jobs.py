"""Periodic repairs: lost workers, stray processes, old scratch folders, deleted jobs, expired outputs.

Each repair may run on any worker, any number of times.
"""

import logging
import threading
import time
from functools import partial

from sqlalchemy import select

from core.db.database import now
from core.db.models.jobs import Job
from core.errors import LeaseLost
from core.jobs import lifecycle, maintenance, metrics, queries
from core.jobs.scheduling import allocations
from core.jobs.states import OWNED, TERMINAL
from core.storage.prune import prune
from worker.attempt.disk_quota import used_bytes
from worker.attempt.scratch import Scratch, scratches
from worker.attempt.spans import AttemptSpans
from worker.backends.base import Backend, Handle, LaunchError
from worker.context import Host
from worker.maintenance.cloud import CloudSweep
from worker.maintenance.images import Shelves

logger = logging.getLogger(__name__)

_TURN = "sweep"
_TURN_SWEEPS = 3
UPLOAD_LEFTOVER_SECONDS = 24 * 3600
HOST_GONE_SECONDS = 24 * 3600
"""A host silent for this long is not expected to return and clean up its attempts."""
PRUNE_EVERY_SECONDS = 3600.0
PRUNE_SECONDS = 20.0
"""Longest time that deletions by retention policy delay the other repairs; the next sweep continues."""


class Sweep:
    """The repairs of one host.

    For a while after the start, and after the database was away, no host is declared lost: an outage of the control
    plane must not look like dead hosts.
    """

    def __init__(self, host: Host) -> None:
        self._host = host
        self._strays_in_clouds = CloudSweep(host)
        self._shelves = Shelves(host)
        self._lost_after = host.settings.worker.lost_after_seconds
        self._rung_again = host.settings.worker.renotify_seconds
        self._trusted_at = time.monotonic() + self._lost_after
        self._prune_at = 0.0

    def database_was_away(self) -> None:
        """Wait again before declaring hosts lost: they could not send heartbeats."""
        self._trusted_at = time.monotonic() + self._lost_after

    def run(self, held: set[str]) -> dict[str, int]:
        """Run the repairs of this host and, if it is this worker's turn, those that all hosts share.

        Args:
            held: Ids of the jobs that this worker runs now.

        Returns:
            Number of repairs by kind.
        """
        self._shelves.report()
        self._measure()
        repaired = {
            "scratch": self._remove_scratch(held),
            "strays": self._destroy_strays(held),
            "images": self._shelves.prune(),
            "uploads": self._host.workspaces.sweep_temporary(UPLOAD_LEFTOVER_SECONDS),
        }
        repaired |= self._strays_in_clouds.run()
        if self._my_turn():
            repaired |= {
                "lost_jobs": self._give_up_lost(),
                "deleted_jobs": self._empty_deleted(),
                "rung_again": self._host.write(partial(maintenance.ring_again, seconds=self._rung_again)),
                "gpus": self._host.write(maintenance.free_gpus),
                "ports": self._host.write(allocations.free_ports),
                "retention": self._prune(),
            }
        if any(repaired.values()):
            logger.info("swept", extra=repaired)
            self._host.write(partial(maintenance.note, worker=self._host.name, repaired=repaired))
        return repaired

    def _measure(self) -> None:
        """Measure the disk space of this host's attempts, if they have a joint quota."""
        if self._host.settings.disk.host_mb and self._host.attempts.is_dir():
            used = used_bytes([self._host.attempts], threading.Event())
            self._host.attempts_bytes = self._host.attempts_bytes if used is None else used

    def _my_turn(self) -> bool:
        """Take or keep the turn: one worker at a time, replaced by another if it misses a few sweeps."""
        seconds = _TURN_SWEEPS * self._host.settings.worker.sweep_seconds
        return self._host.write(partial(maintenance.take_turn, name=_TURN, holder=self._host.name, seconds=seconds))

    def _give_up_lost(self) -> int:
        """Give up attempts whose host sent no heartbeat for `lost_after` seconds; they may be retried elsewhere."""
        if time.monotonic() < self._trusted_at:
            return 0
        silent = select(Job).where(
            Job.state.in_(OWNED), Job.heartbeat_at < now(-self._lost_after), Job.host != self._host.host
        )
        with self._host.database.read() as session:
            jobs = list(session.scalars(silent))
        return sum(self._give_up(job) for job in jobs)

    def _give_up(self, job: Job) -> bool:
        detail = f"{self._lost_after / 60:.0f} minutes"
        try:
            self._host.write(lambda session: lifecycle.give_up(session, job, "worker_lost", detail))
        except LeaseLost:
            return False  # the host came back
        AttemptSpans(job).closed(job, "worker_lost")
        logger.warning("job_given_up", extra=job.log_context())
        return True

    def _remove_scratch(self, held: set[str]) -> int:
        """Destroy and remove attempts that are over, except those that another living host is to clean up.

        An attempt whose job is not in this database is left alone: the folder may belong to another database. Hosts may
        share the folder, but only the host that ran an attempt can end the processes it left, and it finds them by the
        scratch folder.
        """
        count = 0
        for job_id, attempt in scratches(self._host.attempts):
            if job_id in held or not self._over(job_id, attempt):
                continue
            scratch = self._host.scratch(job_id, attempt)
            if self._destroyed(scratch.name) and not self._host.settings.worker.keep_scratch:
                count += _removed(scratch)
        return count

    def _destroy_strays(self, held: set[str]) -> int:
        """Destroy what runs without a scratch folder: it was removed, or a late start came after its removal."""
        strays = [
            (backend, handle)
            for backend, handle in self._found() or ()
            if handle["job_id"] not in held
            and not self._host.scratch(handle["job_id"], handle["attempt"]).root.exists()
            and self._over(handle["job_id"], handle["attempt"])
        ]
        return sum(self._end(backend, handle) for backend, handle in strays)

    def _over(self, job_id: str, attempt: int) -> bool:
        with self._host.database.read() as session:
            job = queries.row(session, job_id)
            if job is None or (job.attempt == attempt and job.state in OWNED):
                return False
            here = self._host.host
            return not queries.belongs_elsewhere(session, job_id, attempt, here, seconds=HOST_GONE_SECONDS)

    def _destroyed(self, name: str) -> bool:
        """Destroy what still runs of an attempt; return whether nothing is left."""
        found = self._found()
        if found is None:
            return False
        return all(self._end(backend, handle) for backend, handle in found if handle["name"] == name)

    def _found(self) -> list[tuple[Backend, Handle]] | None:
        """List the handles of this host's backends; None if a backend does not answer."""
        try:
            backends = [self._host.backend(name) for name in self._host.offered]
            return [(backend, handle) for backend in backends for handle in backend.list_owned()]
        except LaunchError as error:
            logger.warning("strays_not_listed", extra={"error": str(error)})
            return None

    def _end(self, backend: Backend, handle: Handle) -> bool:
        try:
            backend.destroy(handle)
        except LaunchError:
            logger.warning("stray_not_destroyed", exc_info=True)
            return False
        return True

    def _empty_deleted(self) -> int:
        """Remove the logs, artifacts and metrics of deleted jobs; their rows stay."""
        over = select(Job).where(Job.deleted_at.is_not(None), Job.state.in_(TERMINAL), Job.artifacts_state != "removed")
        with self._host.database.read() as session:
            jobs = list(session.scalars(over))
        for job in jobs:
            self._host.logs.remove(job.id)
            self._host.artifacts.remove(job.id)
            metrics.remove(self._host.database, job.id)
            self._host.write(partial(lifecycle.mark_emptied, job_id=job.id))
        return len(jobs)

    def _prune(self) -> int:
        """Delete expired logs, artifacts and archives, once an hour; return how many."""
        if time.monotonic() < self._prune_at:
            return 0
        report = prune(self._host, seconds=PRUNE_SECONDS)
        if not report.more:
            self._prune_at = time.monotonic() + PRUNE_EVERY_SECONDS
        return report.total.count


def _removed(scratch: Scratch) -> bool:
    """Remove a scratch folder; return False on failure, which must not prevent the other repairs."""
    try:
        scratch.remove()
    except (OSError, RecursionError):
        logger.warning("scratch_not_removed", exc_info=True, extra={"scratch": scratch.name})
        return False
    return True
