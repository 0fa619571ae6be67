"""Resources of the service's processes over time: files, threads, memory; and the database's connections."""

import csv
import statistics
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Self

import psutil
from soak.service import SoakDeployment
from sqlalchemy import text

ALLOWED_INCREASE = {"files": 8, "threads": 4, "connections": 3}
"""Increase over the run's second quarter that may be chance: different jobs are under way at each moment."""
MIB_PER_1000_JOBS = 8.0
"""A process may grow so much. A job's record is far smaller; 1 KiB lost with each request of a job is more."""
_INTERVAL_SECONDS = 2.0


@dataclass(frozen=True)
class Sample:
    """One process at one moment; `connections` are the database's, of the whole service."""

    seconds: float
    jobs: int
    process: str
    files: int
    threads: int
    connections: int
    mib: float


class Sampler:
    """Takes samples of a service until it is ended.

    Args:
        service: Whose.
        file: Where they are kept, as CSV.
    """

    def __init__(self, service: SoakDeployment, file: Path) -> None:
        self.samples: list[Sample] = []
        self._service = service
        self._file = file
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._sample_forever)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """Take no more, and write them down."""
        self._ending.set()
        self._thread.join()
        with self._file.open("w", newline="") as file:
            format_table = csv.writer(file)
            format_table.writerow(one.name for one in fields(Sample))
            format_table.writerows(astuple(one) for one in self.samples)

    def _sample_forever(self) -> None:
        began = time.monotonic()
        with self._service.database() as database:
            while not self._ending.wait(_INTERVAL_SECONDS):
                with database.read() as session:
                    connections = session.scalar(
                        text("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()")
                    )
                    jobs = session.scalar(text("SELECT count(*) FROM jobs WHERE finished_at IS NOT NULL"))
                for name, process in self._service.processes.items():
                    held = psutil.Process(process.pid)
                    mib = held.memory_info().rss / 1024**2
                    at = time.monotonic() - began
                    one = Sample(at, jobs, name, held.num_fds(), held.num_threads(), connections, mib)
                    self.samples.append(one)


def split_into_quarters(taken: Sequence[Sample], process: str) -> list[list[Sample]]:
    """A process's samples, by quarters of the jobs that had ended."""
    ours = [one for one in taken if one.process == process]
    most = max((one.jobs for one in ours), default=0) + 1
    found: list[list[Sample]] = [[], [], [], []]
    for one in ours:
        found[4 * one.jobs // most].append(one)
    return found


def format_table(taken: Sequence[Sample]) -> Iterator[str]:
    """A table: medians of each quarter."""
    yield f"{'process':8} {'quarter':>7} {'jobs':>6} {'files':>6} {'threads':>8} {'connections':>12} {'MiB':>7}"
    for process in _process_names(taken):
        for number, part in enumerate(split_into_quarters(taken, process), 1):
            if part:
                files, threads, connections, mib = (
                    _median(part, name) for name in ("files", "threads", "connections", "mib")
                )
                counts = f"{files:6.0f} {threads:8.0f} {connections:12.0f} {mib:7.1f}"
                yield f"{process:8} {number:7} {part[-1].jobs:6,} {counts}"
        yield f"{process:8} grows by {memory_slope(taken, process):.2f} MiB each 1,000 jobs, after the first quarter"


def find_growth(taken: Sequence[Sample]) -> list[str]:
    """List figures that rose from the second quarter to the last, and memory that grows faster than allowed."""
    found = []
    for process in _process_names(taken):
        _, second, _, last = split_into_quarters(taken, process)
        if not second or not last:
            found.append(f"{process}: too few samples to say anything; run more jobs")
            continue
        for name, more in ALLOWED_INCREASE.items():
            before, after = _median(second, name), _median(last, name)
            if after > before + more:
                found.append(f"{process}: {name} rise from {before:.0f} to {after:.0f}")
        if (grown := memory_slope(taken, process)) > MIB_PER_1000_JOBS:
            found.append(
                f"{process}: memory grows by {grown:.1f} MiB each 1,000 jobs; {MIB_PER_1000_JOBS:g} are allowed"
            )
    return found


def memory_slope(taken: Sequence[Sample], process: str) -> float:
    """MiB that a process grew by with each 1,000 jobs, after its first quarter, in which it fills its caches."""
    settled = [one for part in split_into_quarters(taken, process)[1:] for one in part]
    if len({one.jobs for one in settled}) < 2:
        return 0.0
    return statistics.linear_regression([one.jobs for one in settled], [one.mib for one in settled]).slope * 1000


def _median(part: Sequence[Sample], name: str) -> float:
    return statistics.median(getattr(one, name) for one in part)


def _process_names(taken: Sequence[Sample]) -> list[str]:
    return list(dict.fromkeys(one.process for one in taken))
