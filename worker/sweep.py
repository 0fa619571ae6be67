"""The periodic repair: dead workers, strays, old scratch, deleted jobs, what no policy keeps.

Each repair may run on any worker, any number of times.
"""

import logging
import threading
import time
from functools import partial

from sqlalchemy import select

from core.db import now
from core.errors import LeaseLost
from core.jobs import holds, lifecycle, measured, queries, repairs
from core.jobs.models import Job
from core.jobs.states import OWNED, TERMINAL
from worker.backends.base import Backend, BackendError, Handle
from worker.cloudsweep import CloudSweep
from worker.disk import used_bytes
from worker.host import Host
from worker.keeping import Keeping
from worker.shelves import Shelves
from worker.tracing import AttemptSpans
from worker.workspace import Scratch, scratches

logger = logging.getLogger(__name__)

_TURN = "sweep"
_TURN_SWEEPS = 3
UPLOAD_LEFTOVER_SECONDS = 24 * 3600
HOST_GONE_SECONDS = 24 * 3600
"""A host silent this long does not come back to clear up what it ran."""


class Sweep:
    """The repairs of one host.

    Decisions that a machine is lost are held back for a while after the start and after the database was away: a
    sick control plane must not look like dead machines.
    """

    def __init__(self, host: Host) -> None:
        self._host = host
        self._keeping = Keeping(host)
        self._strays_in_clouds = CloudSweep(host)
        self._shelves = Shelves(host)
        self._lost_after = host.settings.worker.lost_after_seconds
        self._rung_again = host.settings.worker.rung_again_seconds
        self._trusted_at = time.monotonic() + self._lost_after

    def database_was_away(self) -> None:
        """Hearts could not beat: wait again before calling any of them dead."""
        self._trusted_at = time.monotonic() + self._lost_after

    def run(self, held: set[str]) -> dict[str, int]:
        """Repair what needs it: this host's own leavings, and, when it is this worker's turn, what is everybody's.

        Args:
            held: Ids of the jobs that this worker runs now.

        Returns:
            How many of each were repaired.
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
                "rung_again": self._host.write(partial(repairs.ring_again, seconds=self._rung_again)),
                "cards": self._host.write(repairs.free_cards),
                "ports": self._host.write(holds.free_ports),
                "retention": self._keeping.run(),
            }
        if any(repaired.values()):
            logger.info("swept", extra=repaired)
            self._host.write(partial(repairs.note, worker=self._host.name, repaired=repaired))
        return repaired

    def _measure(self) -> None:
        """Where the attempts of this host have a quota together: how much they take."""
        if self._host.settings.disk.host_mb and self._host.attempts.is_dir():
            used = used_bytes([self._host.attempts], threading.Event())
            self._host.attempts_bytes = self._host.attempts_bytes if used is None else used

    def _my_turn(self) -> bool:
        """One worker at a time; another takes over when this one has not come back for a few sweeps."""
        seconds = _TURN_SWEEPS * self._host.settings.worker.sweep_seconds
        return self._host.write(partial(repairs.take_turn, name=_TURN, holder=self._host.name, seconds=seconds))

    def _give_up_lost(self) -> int:
        """Close jobs whose host has not answered for `lost_after`; its worker may retry them elsewhere."""
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
            return False  # it came back
        AttemptSpans(job).closed(job, "worker_lost")
        logger.warning("job_given_up", extra=job.log_context())
        return True

    def _remove_scratch(self, held: set[str]) -> int:
        """End and remove attempts that are over by their row, except what another living host is to clear up.

        One whose job this database does not know is left alone: the folder may be another database's. Hosts may share
        the folder, but only the one that ran an attempt can end the processes it left, and it finds them by its
        scratch.
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
        """End what runs without a scratch directory: somebody removed it, or a late start came after its removal."""
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
        """Whether nothing of the attempt runs any more; what does is ended."""
        found = self._found()
        if found is None:
            return False
        return all(self._end(backend, handle) for backend, handle in found if handle["name"] == name)

    def _found(self) -> list[tuple[Backend, Handle]] | None:
        """What the backends of this host have of ours; None if one of them does not answer."""
        try:
            backends = [self._host.backend(name) for name in self._host.offered]
            return [(backend, handle) for backend in backends for handle in backend.list_owned()]
        except BackendError as error:
            logger.warning("strays_not_listed", extra={"error": str(error)})
            return None

    def _end(self, backend: Backend, handle: Handle) -> bool:
        try:
            backend.destroy(handle)
        except BackendError:
            logger.warning("stray_not_destroyed", exc_info=True)
            return False
        return True

    def _empty_deleted(self) -> int:
        """Remove what deleted jobs printed and left; their record stays."""
        over = select(Job).where(Job.deleted_at.is_not(None), Job.state.in_(TERMINAL), Job.artifacts_state != "removed")
        with self._host.database.read() as session:
            jobs = list(session.scalars(over))
        for job in jobs:
            self._host.logs.remove(job.id)
            self._host.artifacts.remove(job.id)
            measured.remove(self._host.database, job.id)
            self._host.write(partial(lifecycle.mark_emptied, job_id=job.id))
        return len(jobs)


def _removed(scratch: Scratch) -> bool:
    """Whether it could be removed; one that cannot must not keep the other repairs from being done."""
    try:
        scratch.remove()
    except (OSError, RecursionError):
        logger.warning("scratch_not_removed", exc_info=True, extra={"scratch": scratch.name})
        return False
    return True
