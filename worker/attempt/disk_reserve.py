"""Ends the job that fills a disk of this host, before the space that the service itself needs is used up."""

import logging
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from core.formatting import MIB
from core.system.filesystem import device_of, free_bytes
from worker.attempt.disk_quota import DiskQuota
from worker.attempt.periodic import PeriodicTask, Schedule

logger = logging.getLogger(__name__)

_CHECK_SECONDS = 0.5
_MIN_CHECK_SECONDS = 0.02
_BYTES_PER_SECOND = 4096 * MIB
"""Fastest writing to expect, that to memory: the closer a disk is to the limit, the sooner it is looked at again."""
_MEASURE_SECONDS = 2.0  # longest measurement: a folder of millions of files must not keep the disk filling
_AT_ONCE = 16
_MIN_SHARE = 4  # a job is ended if it wrote at least this part of what the disk has lost (1 / _MIN_SHARE) …
_LEAST_PART = 256  # … and this part of the reserve: others may write their few lines on


class _Use(NamedTuple):
    """Bytes that an attempt holds on a disk, and that its processes have written anywhere."""

    held: int = 0
    written: int = 0


class _Low(NamedTuple):
    free: int  # bytes free when that was noticed, or when a job was last ended for it
    used: dict[DiskQuota, _Use]


class DiskReserve(PeriodicTask):
    """Watches the disks that jobs write to; of each that has less free than half of the reserve, ends a job.

    That is the one that has written most since the disk has less free than the reserve. If what the attempts hold does
    not explain what was lost, the bytes that their processes have written do: files in shared storage are nobody's.
    `min_free_mb`: the reserve; 0: nothing is watched.
    """

    def __init__(self, folders: list[Path], storage: Path, min_free_mb: int, schedule: Schedule) -> None:
        super().__init__(0)
        self._folders, self._storage = folders, storage
        self._reserve = min_free_mb * MIB
        self._schedule = schedule
        self._lock = threading.Lock()
        self._quotas: set[DiskQuota] = set()
        self._scheduled = False
        self._low: dict[int, _Low] = {}

    @contextmanager
    def watching(self, quota: DiskQuota) -> Iterator[None]:
        with self._lock:
            if self._reserve and not self._scheduled:
                self.start(self._schedule)
                self._scheduled = True
            self._quotas.add(quota)
        try:
            yield
        finally:
            with self._lock:
                self._quotas.discard(quota)

    def step(self) -> float | None:
        with self._lock:
            quotas = [quota for quota in self._quotas if quota.over is None]
            self._scheduled = bool(self._quotas)
            if not self._scheduled:
                self._low.clear()
                return None
        seen: set[int] = set()
        pause = _CHECK_SECONDS
        for folder in self._folders:
            disk = device_of(folder)
            if disk is not None and disk not in seen:
                seen.add(disk)
                try:
                    pause = min(pause, self._check(folder, disk, quotas))
                except Exception:  # the next check may succeed
                    logger.exception("disk_not_checked")
        return pause

    def _check(self, folder: Path, disk: int, quotas: list[DiskQuota]) -> float:
        """Check a disk; return the seconds until the next check."""
        free = free_bytes(folder)
        room = free - self._reserve // 2
        if free >= self._reserve:
            self._low.pop(disk, None)
        elif (room < 0 or disk not in self._low) and not self._end_worst(folder, disk, free, quotas) and room < 0:
            return _CHECK_SECONDS  # something else fills the disk
        return max(_MIN_CHECK_SECONDS, room / _BYTES_PER_SECOND)

    def _end_worst(self, folder: Path, disk: int, free: int, quotas: list[DiskQuota]) -> bool:
        """Measure the attempts; with less than half of the reserve free, end one. Return whether one was ended."""
        used = self._measure(quotas, disk)
        before = self._low.get(disk)
        if before is None:
            # What was there before a worker started, or was copied in, is not what fills the disk now.
            used_before = {quota: use for quota, use in used.items() if not quota.fresh}
            before = self._low[disk] = _Low(self._reserve, used_before if free < self._reserve // 2 else used)
        if free >= self._reserve // 2 or not used:
            return False
        least = max((before.free - free) / _MIN_SHARE, self._reserve / _LEAST_PART)
        grown = {quota: _growth(use, before.used.get(quota, _Use())) for quota, use in used.items()}
        worst = max(grown, key=lambda quota: grown[quota].held)
        amount = grown[worst].held
        if amount < least and disk == device_of(self._storage):
            worst = max(grown, key=lambda quota: grown[quota].written)
            amount = grown[worst].written
        if amount < least:
            return False
        self._low[disk] = _Low(free, used)
        worst.end_at_once(
            f"{folder} had only {free // MIB:,} MiB free, and this job had written more there than any other: "
            f"{amount // MIB:,} MiB. Delete outputs of other jobs, or write less; {self._reserve // MIB:,} MiB of "
            "the disk have to stay free (GRADIENT_DISK__MIN_FREE_MB)."
        )
        return True

    def _measure(self, quotas: list[DiskQuota], disk: int) -> dict[DiskQuota, _Use]:
        enough = threading.Event()
        timer = threading.Timer(_MEASURE_SECONDS, enough.set)
        timer.start()

        def measure(quota: DiskQuota) -> _Use | None:
            held = quota.used_bytes(enough, disk)
            return None if held is None else _Use(held, quota.written_bytes())

        try:
            with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="disk") as pool:
                uses = zip(quotas, pool.map(measure, quotas), strict=True)
                return {quota: use for quota, use in uses if use is not None}
        finally:
            timer.cancel()


def _growth(now: _Use, before: _Use) -> _Use:
    return _Use(now.held - before.held, now.written - before.written)
