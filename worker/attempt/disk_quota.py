"""Measures the disk space of attempts and compares it with their quota."""

import logging
import subprocess
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from core.db.models.jobs import Job
from core.formatting import MIB
from worker.attempt.periodic import PeriodicTask
from worker.attempt.scratch import Scratch
from worker.backends.base import Handle, LaunchError, read_control, write_control_file
from worker.context import WorkerContext

logger = logging.getLogger(__name__)

QUOTA_FILE = "disk_quota"
"""Control file with the reason that a job was ended for its quota, for a worker that adopts it."""
_PAUSE_FACTOR = 10
_POLL_SECONDS = 0.5


def measure_used_bytes(folders: Sequence[Path], ended: threading.Event) -> int | None:
    """Measure the disk space of folders: blocks, not sizes; hard links once; other file systems not.

    Runs `du` as a separate process: a huge folder must not slow this one down.

    Returns:
        The bytes; None if measuring failed, or `ended` was set first.
    """
    command = ["du", "-skx", "--", *map(str, folders)]
    try:
        with subprocess.Popen(  # noqa: S603 - our own folders
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        ) as scan:
            while True:
                try:
                    lines = scan.communicate(timeout=_POLL_SECONDS)[0].splitlines()
                    break
                except subprocess.TimeoutExpired:
                    if ended.is_set():
                        scan.kill()
                        return None
    except OSError:
        logger.warning("disk_not_measured", exc_info=True)
        return None
    return 1024 * sum(int(line.split()[0]) for line in lines)


class DiskQuota(PeriodicTask):
    """Measures the disk space of a running attempt and sets `over` once it exceeds the quota.

    Attributes:
        over: Usage and quota as text; None while within the quota.
    """

    def __init__(self, context: WorkerContext, job: Job, scratch: Scratch) -> None:
        self._interval = context.settings.disk.check_seconds
        super().__init__(self._interval, job.log_context())
        self._job = job
        self._context = context
        self._scratch = scratch
        self._handle: Handle = job.handle or {}
        self._limit = context.settings.disk.job_mb * MIB
        self.over: str | None = read_control(scratch.control, QUOTA_FILE)
        if not self._limit or self.over is not None:
            self._ended.set()

    def step(self) -> float:
        """Measure once; the pause after it is longer if measuring is slow, so that it takes at most a tenth."""
        began = time.monotonic()
        used = self._measure()
        if used is not None and used > self._limit:
            words = f"{used // MIB:,} MiB of {self._limit // MIB:,} MiB"
            logger.warning("disk_quota_passed", extra={"used": used})
            write_control_file(self._scratch.control, QUOTA_FILE, words)
            self.over = words
            self._ended.set()
        return max(self._interval, _PAUSE_FACTOR * (time.monotonic() - began))

    def _measure(self) -> int | None:
        used = measure_used_bytes([self._scratch.root], self._ended)
        if used is None:
            return None
        try:
            layer = self._context.backend(self._job.backend).layer_bytes(self._handle)
        except LaunchError as error:
            logger.info("layer_not_measured", extra={"error": str(error)})
            layer = 0
        return used + layer + self._context.logs.reader(self._job.id).size
