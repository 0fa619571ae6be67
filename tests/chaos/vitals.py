"""Memory and open files of the service's processes over time."""

import contextlib
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

import psutil
from chaos.stack import Stack

MAX_FILES_GROWTH = 60
"""A process that opens so many more than it had is leaking them: each job under way needs a few, each follower two."""
MAX_MIB_GROWTH = 256
_WARM_UP_SECONDS = 10.0


@dataclass
class ProcessVitals:
    """One process of the service."""

    name: str
    pid: int
    since: float
    seconds: float = 0.0
    first_files: int = 0
    files: int = 0
    first_mib: float = 0.0
    mib: float = 0.0
    most_files: int = 0
    most_mib: float = 0.0
    counts: list[int] = field(default_factory=list)

    @property
    def resting_files(self) -> int:
        """The least number of open files in the second half of its life: a fault's peak goes back, a leak does not."""
        return min(self.counts[len(self.counts) // 2 :], default=0)

    def __str__(self) -> str:
        return (
            f"{self.name} (pid {self.pid}, {self.seconds:.0f} s): {self.first_files} → {self.files} files, at most "
            f"{self.most_files}; {self.first_mib:.0f} → {self.mib:.0f} MiB, at most {self.most_mib:.0f}"
        )


class VitalsMonitor:
    """Measures every process of a stack now and then, until it is ended.

    Args:
        stack: Whose.
        file: Where every measurement is kept, as CSV.
        seconds: Between two measurements.
    """

    def __init__(self, stack: Stack, file: Path, seconds: float = 2.0) -> None:
        self.processes: dict[int, ProcessVitals] = {}
        self._stack = stack
        self._began = time.monotonic()
        self._file = file
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._measure_forever, args=(seconds,), daemon=True)
        self._thread.start()

    def end(self) -> list[ProcessVitals]:
        """Stop, and return the measurements of each process."""
        self._ending.set()
        self._thread.join()
        return sorted(self.processes.values(), key=lambda one: (one.name, one.since))

    def _measure_forever(self, seconds: float) -> None:
        with self._file.open("w", buffering=1) as file:
            file.write("seconds,process,pid,files,mib\n")
            while not self._ending.wait(seconds):
                for name, kept in self._stack.services.items():
                    if kept.process is not None:
                        with contextlib.suppress(psutil.Error):
                            self._measure(name, kept.process.pid, file)

    def _measure(self, name: str, pid: int, file: TextIO) -> None:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            return
        one = self.processes.setdefault(pid, ProcessVitals(name, pid, time.monotonic()))
        one.seconds = time.monotonic() - one.since
        one.files, one.mib = process.num_fds(), process.memory_info().rss / 1024**2
        if one.seconds < _WARM_UP_SECONDS:
            one.first_files, one.first_mib = one.files, one.mib
        file.write(f"{time.monotonic() - self._began:.0f},{name},{pid},{one.files},{one.mib:.0f}\n")
        one.counts.append(one.files)
        one.most_files = max(one.most_files, one.files)
        one.most_mib = max(one.most_mib, one.mib)


def find_leaks(measured: list[ProcessVitals]) -> list[str]:
    """Return the processes that had far more later in their life than after their start."""
    found = [
        f"open files: {one}; `ls -l /proc/{one.pid}/fd` of a living one says which"
        for one in measured
        if one.resting_files - one.first_files > MAX_FILES_GROWTH
    ]
    return found + [f"memory: {one}" for one in measured if one.mib - one.first_mib > MAX_MIB_GROWTH]
