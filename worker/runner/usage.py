from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Collection, Iterable
from pathlib import Path

_KIB = 1024
_REST_FACTOR = 50
_TICKS, _PAGE_BYTES = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")


class UsageMeter:
    """Measures what the processes of one job use; of memory each page once, however many of them share it.

    To count pages takes the kernel some ten milliseconds for each gigabyte of a process. So it is done in at most a
    fiftieth of the time; in between, the memory is taken to grow as much as the sum of what is resident for each.
    """

    def __init__(self) -> None:
        self.measured_at = -math.inf  # time of the last measurement, of `time.monotonic()`
        self.peak = 0  # the highest result so far, in bytes
        self._counted = self._resident = 0
        self._rests_until = -math.inf
        self._cpu: tuple[float, float] | None = None

    def measure(self, pids: Collection[int], resident: int, files_in_memory: int, limit: int | None) -> int:
        """Return the memory in use, in bytes, without files of disks that are in memory.

        Args:
            resident: Sum of what is resident for each, in bytes.
            files_in_memory: Bytes of the job's files in memory, mapped or not.
            limit: More than this is returned only if it was counted.
        """
        resident += files_in_memory
        now = time.monotonic()
        used = min(resident, self._counted + max(0, resident - self._resident))
        if now >= self._rests_until or (limit is not None and used > limit):
            used = self._counted = _count_pages(pids, files_in_memory)
            self._resident = resident
            self._rests_until = now + _REST_FACTOR * (time.monotonic() - now)
        self.measured_at, self.peak = now, max(used, self.peak)
        return used

    def sample(self, cpu_seconds: float, memory: int, processes: int) -> dict[str, float]:
        """Return the usage by name: of the CPU since the last call."""
        now = time.monotonic()
        (at, before), self._cpu = self._cpu or (now, 0.0), (now, cpu_seconds)
        percent = {"cpu_percent": max(0.0, 100 * (cpu_seconds - before) / (now - at))} if now > at else {}
        return {"memory_bytes": float(memory), "processes": float(processes)} | percent


def _count_pages(pids: Iterable[int], files_in_memory: int) -> int:
    """Return the private memory of processes and what they share in memory, in bytes; what is shared counts once."""
    private, shared = 0, 0
    for pid in pids:
        with contextlib.suppress(OSError):
            try:
                text = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii")
            except PermissionError:
                private += _resident_bytes(pid)
                continue
            fields = {name: int(columns[0]) * _KIB for name, *columns in map(str.split, text.splitlines()[1:])}
            private += fields.get("Pss_Anon:", fields.get("Pss:", 0))  # Linux before 5.4 does not tell them apart
            shared += fields.get("Pss_Shmem:", 0)
    return private + max(shared, files_in_memory)


def measure_usage(
    pids: Iterable[int], meter: UsageMeter, limit: int | None = None, files_in_memory: int = 0
) -> tuple[float, int, int]:
    """Return the CPU seconds that processes have used so far, their memory now in bytes, and their number.

    `limit`: see `UsageMeter.measure`.
    """
    cpu, resident, measured = 0, 0, []
    for pid in pids:
        with contextlib.suppress(OSError):  # it has ended
            fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
            resident += _resident_bytes(pid)
            cpu += sum(map(int, fields[11:15]))  # its own and its children's, in the program and in the kernel
            measured.append(pid)
    return cpu / _TICKS, meter.measure(measured, resident, files_in_memory, limit), len(measured)


def _resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]) * _PAGE_BYTES
