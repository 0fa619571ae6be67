"""Measures the disk space of attempts and compares it with their quota."""

import logging
import subprocess
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from core.formatting import MIB
from core.jobs.models import Job
from core.logging import bind
from worker.backends.base import Handle, LaunchError, note_control, read_control
from worker.host import Host
from worker.workspace import Scratch

logger = logging.getLogger(__name__)

NOTE = "disk_quota"
"""Control file with the reason that a job was ended for its quota, for a worker that adopts it."""
_SHARE = 10
_LOOK_SECONDS = 0.5


def used_bytes(folders: Sequence[Path], ended: threading.Event) -> int | None:
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
                    lines = scan.communicate(timeout=_LOOK_SECONDS)[0].splitlines()
                    break
                except subprocess.TimeoutExpired:
                    if ended.is_set():
                        scan.kill()
                        return None
    except OSError:
        logger.warning("disk_not_measured", exc_info=True)
        return None
    return 1024 * sum(int(line.split()[0]) for line in lines)


class DiskQuota(threading.Thread):
    """Measures the disk space of a running attempt and sets `over` once it exceeds the quota.

    Attributes:
        over: Usage and quota as text; None while within the quota.
    """

    def __init__(self, host: Host, job: Job, scratch: Scratch) -> None:
        super().__init__(name=f"disk-{job.id}", daemon=True)
        self._host = host
        self._job = job
        self._scratch = scratch
        self._handle: Handle = job.handle or {}
        self._limit = host.settings.disk.job_mb * MIB
        self._ended = threading.Event()
        self.over: str | None = read_control(scratch.control, NOTE)

    def run(self) -> None:
        """Measure at intervals; longer ones if measuring is slow, so that it takes at most a tenth of the time."""
        bind(**self._job.log_context())
        pause = every = self._host.settings.disk.check_seconds
        while self._limit and self.over is None and not self._ended.wait(pause):
            began = time.monotonic()
            used = self._used()
            if used is not None and used > self._limit:
                words = f"{used // MIB:,} MiB of {self._limit // MIB:,} MiB"
                logger.warning("disk_quota_passed", extra={"used": used})
                note_control(self._scratch.control, NOTE, words)
                self.over = words
            pause = max(every, _SHARE * (time.monotonic() - began))

    def end(self) -> None:
        """Stop measuring, and wait for the thread."""
        self._ended.set()
        self.join()

    def _used(self) -> int | None:
        used = used_bytes([self._scratch.root], self._ended)
        if used is None:
            return None
        try:
            layer = self._host.backend(self._job.backend).layer_bytes(self._handle)
        except LaunchError as error:
            logger.info("layer_not_measured", extra={"error": str(error)})
            layer = 0
        return used + layer + self._host.logs.reader(self._job.id).size
