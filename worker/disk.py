"""How much of the disk jobs take: measured apart from everything else, and held against their quotas."""

import logging
import subprocess
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from core.disk import MIB
from core.jobs.models import Job
from core.logging import bind
from worker.backends.base import BackendError, Handle, note_control, read_control
from worker.host import Host
from worker.workspace import Scratch

logger = logging.getLogger(__name__)

NOTE = "disk_quota"
"""The control file that says that a job is ended for its quota: whoever adopts it knows the reason."""
_SHARE = 10
_LOOK_SECONDS = 0.5


def used_bytes(folders: Sequence[Path], ended: threading.Event) -> int | None:
    """Bytes that folders take on their disks: blocks, not sizes; a file of several names once; no other file system.

    Measured by `du`, a process of its own: a huge folder must not slow this one down.

    Returns:
        The bytes; None if it was not to be known, or `ended` was set before it was.
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
    """Measures what a running attempt takes on disk; `over` says so once that is more than it may.

    Attributes:
        over: What it takes, in words; None: not more than its quota.
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
        """Measure now and then; what takes long to measure less often, so that it never costs more than a tenth."""
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
        """No more measurements."""
        self._ended.set()
        self.join()

    def _used(self) -> int | None:
        used = used_bytes([self._scratch.root], self._ended)
        if used is None:
            return None
        try:
            layer = self._host.backend(self._job.backend).layer_bytes(self._handle)
        except BackendError as error:
            logger.info("layer_not_measured", extra={"error": str(error)})
            layer = 0
        return used + layer + self._host.logs.reader(self._job.id).size
