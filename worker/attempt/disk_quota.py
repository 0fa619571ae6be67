"""Measures the disk space of attempts and compares it with their quota; `disk_reserve` watches the disks."""

import logging
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from core.db.models.jobs import Job
from core.formatting import MIB
from core.jobs.spec.guards import GUARDS
from core.storage.stores import Stores
from core.system.filesystem import device_of, free_bytes
from core.system.untrusted_folders import measure_used_bytes
from worker.attempt.periodic import PAUSE_FACTOR, PeriodicTask
from worker.attempt.scratch import Scratch
from worker.backends.base import Backend, Handle, ImageBackend, LaunchError
from worker.runner.control_files import read_control, write_control_file

logger = logging.getLogger(__name__)

_REASONS = ("disk_quota", "disk_full", *(guard.reason for guard in GUARDS.values()))
"""Also names of control files, with the detail, for a worker that adopts the job."""
CHECK_SECONDS = 10.0  # a quota is of gigabytes, which no disk writes in a moment


class Launched(NamedTuple):
    """An attempt whose command was started."""

    job: Job
    scratch: Scratch
    backend: Backend
    handle: Handle


class DiskQuota(PeriodicTask):
    """Measures the disk space of a running attempt, and says when the attempt must end for it.

    `fresh`: this worker has just started it: all that it holds, it has written now.
    """

    def __init__(self, stores: Stores, launched: Launched, *, fresh: bool = False) -> None:
        super().__init__(CHECK_SECONDS, launched.job.log_context())
        self.fresh = fresh
        self._stores = stores
        self._job, self._scratch, self._backend, self._handle = launched
        self._limit = stores.settings.disk.job_mb * MIB
        self._used = self._free_at_most = 0
        marks = ((reason, read_control(self._scratch.control, reason)) for reason in _REASONS)
        # the reason to end the attempt, `disk_quota` or `disk_full`, and its detail; None: none
        self.over: tuple[str, str] | None = next(((reason, text) for reason, text in marks if text is not None), None)
        if not self._limit or self.over is not None:
            self._ended.set()

    def step(self) -> float:
        """Measure once; the pause after it is longer if measuring is slow, so that it takes at most a tenth."""
        began = time.monotonic()
        used = self.used_bytes(self._ended)
        self._used = used or self._used
        if used is not None and used > self._limit:
            self.end_with("disk_quota", f"{used // MIB:,} MiB of {self._limit // MIB:,} MiB")
        return max(CHECK_SECONDS, PAUSE_FACTOR * (time.monotonic() - began))

    def end_at_once(self, detail: str) -> None:
        """End the attempt, because it fills a disk: it would go on doing so during a grace period."""
        self.end_with("disk_full", detail)
        with suppress(LaunchError):  # the monitor tries again
            self._backend.signal(self._handle, grace=False)

    def room(self) -> tuple[float, int]:
        """Return the used part of the space that the attempt may use, and the bytes that are left."""
        free = free_bytes(self._scratch.root)
        self._free_at_most = max(self._free_at_most, free, 1)
        share = 1 - free / self._free_at_most
        if not self._limit:
            return share, free
        return max(share, self._used / self._limit), min(free, self._limit - self._used)

    def end_with(self, reason: str, detail: str) -> None:
        """Let the monitor end the attempt for this reason; also that of another worker, if it takes the job over."""
        logger.warning("job_ended_by_worker", extra={"reason": reason, "detail": detail})
        self.over = reason, detail
        write_control_file(self._scratch.control, reason, detail)
        self._ended.set()

    def used_bytes(self, ended: threading.Event, disk: int | None = None) -> int | None:
        """Return the disk space that the attempt holds; None if measuring failed, or `ended` was set first."""
        log = self._stores.logs.reader(self._job.id).raw_path
        stored = self._stores.artifacts.folder(self._job.id, self._job.attempt)
        # What is stored on the same disk as the attempt are links to its own files.
        folders = [self._scratch.root, *(path for path in (log, stored) if disk is not None and path is not None)]
        wanted = [path for path in folders if disk is None or device_of(path) == disk]
        used = measure_used_bytes(wanted, ended.is_set) if wanted else 0
        if used is None:
            return None
        if disk is None:
            return used + self._layer_bytes() + self._stores.logs.reader(self._job.id).size
        return used + (self._layer_bytes() if device_of(self._layer_folder()) == disk else 0)

    def written_bytes(self) -> int:
        """Return the bytes that the attempt's processes have written anywhere, as far as that is known."""
        return self._backend.written_bytes(self._handle)

    def _layer_folder(self) -> Path:
        data = self._backend.data_folder() if isinstance(self._backend, ImageBackend) else None
        return data or self._scratch.root

    def _layer_bytes(self) -> int:
        try:
            return self._backend.layer_bytes(self._handle)
        except LaunchError as error:
            logger.info("layer_not_measured", extra={"error": str(error)})
            return 0
