"""Resource usage of a job: sampled often, stored rarely, with peaks and means.

A sample is taken every few seconds while the job runs. Rows are stored at growing intervals, so that a job of a day
leaves about two thousand. A row covers all samples since the previous row: averages of percentages, watts and degrees,
maxima of everything else. Peaks and means cover all samples, and continue those of an earlier worker.
"""

import re
import time
from dataclasses import dataclass, field
from typing import Any

import psutil

from core.db.models.jobs import Attempt

_INTERVAL_GROWTH_SECONDS = 600.0
_MAX_GAP_SECONDS = 60.0
_AVERAGED = ("_percent", "_watts", "_celsius")
_OF_GPUS = re.compile(r"gpu\d+_(percent|memory_bytes)\Z")
_STORED: tuple[str, ...] = ("cpu_percent", "memory_bytes", "host_cpu_percent")
_LEAST_SECONDS = 0.1  # ten times the unit in which the kernel counts
_MEANS = ("cpu_percent", "gpu_percent", "host_cpu_percent")


class HostMeter:
    """The CPU time of everything that this host runs, since the last reading."""

    def __init__(self) -> None:
        self._read_at, self._busy = time.monotonic(), _busy_seconds()

    def read(self) -> dict[str, float]:
        """Return `host_cpu_percent`, of which 100 is one CPU; nothing at once after another reading."""
        now, busy = time.monotonic(), _busy_seconds()
        passed, worked = now - self._read_at, busy - self._busy
        self._read_at, self._busy = now, busy
        return {"host_cpu_percent": max(0.0, 100 * worked / passed)} if passed >= _LEAST_SECONDS else {}


def _busy_seconds() -> float:
    times = psutil.cpu_times()  # guests are part of user
    return float(sum(getattr(times, name, 0.0) for name in ("user", "nice", "system", "irq", "softirq", "steal")))


@dataclass
class UsageTotals:
    seconds: float = 0.0
    # by name: cpu_percent, memory_bytes, gpu_percent, gpu_memory_bytes (the GPU with the most)
    maxima: dict[str, float] = field(default_factory=dict)
    # by name: cpu_percent, gpu_percent (of all its GPUs), host_cpu_percent (of everything on its host)
    means: dict[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, attempt: Attempt | None) -> "UsageTotals":
        """Load the peaks from an attempt's row."""
        if attempt is None or attempt.sampled_seconds is None:
            return cls()
        maxima = {
            "memory_bytes": attempt.peak_memory_bytes,
            "cpu_percent": attempt.peak_cpu_percent,
            "gpu_memory_bytes": attempt.peak_gpu_memory_bytes,
            "gpu_percent": attempt.peak_gpu_percent,
        }
        means = {name: getattr(attempt, f"mean_{name}") for name in _MEANS}
        return cls(
            attempt.sampled_seconds,
            {name: float(value) for name, value in maxima.items() if value is not None},
            {name: value for name, value in means.items() if value is not None},
        )

    def add(self, values: dict[str, float], seconds: float) -> None:
        """Add a sample that covers this many seconds."""
        of_gpus: dict[str, list[float]] = {"percent": [], "memory_bytes": []}
        for name, value in values.items():
            if match := _OF_GPUS.match(name):
                of_gpus[match[1]].append(value)
        stored: dict[str, float] = {name: values[name] for name in _STORED if name in values}
        stored |= {f"gpu_{name}": max(samples) for name, samples in of_gpus.items() if samples}
        for name, value in stored.items():
            self.maxima[name] = max(value, self.maxima.get(name, value))
        now = {name: value for name, value in stored.items() if name in _MEANS}
        if of_gpus["percent"]:
            now["gpu_percent"] = sum(of_gpus["percent"]) / len(of_gpus["percent"])
        for name, value in now.items():
            before = self.means.get(name)
            weight = seconds / (self.seconds + seconds) if before is not None and self.seconds + seconds > 0 else 1.0
            self.means[name] = value if before is None else before + weight * (value - before)
        self.seconds += seconds

    def columns(self) -> dict[str, Any]:
        """Return the columns of an attempt's row; empty before the first sample."""
        if not self.maxima:
            return {}
        return {
            "sampled_seconds": self.seconds,
            "peak_memory_bytes": _to_int(self.maxima.get("memory_bytes")),
            "peak_cpu_percent": self.maxima.get("cpu_percent"),
            "peak_gpu_memory_bytes": _to_int(self.maxima.get("gpu_memory_bytes")),
            "peak_gpu_percent": self.maxima.get("gpu_percent"),
            **{f"mean_{name}": self.means.get(name) for name in _MEANS},
        }


class UsageSampler:
    def __init__(self, totals: UsageTotals, every: float, elapsed: float, *, on_host: bool = False) -> None:
        self._on_host = on_host
        self._host: HostMeter | None = None
        self.totals = totals
        self._interval = every
        self._last_at = elapsed
        self._row_at = elapsed
        self._sums: dict[str, tuple[float, int]] = {}
        self._maxima: dict[str, float] = {}

    def add(self, elapsed: float, values: dict[str, float]) -> dict[str, float] | None:
        """Add a sample; return the row that is due with it, if any. `elapsed`: seconds that the job has run."""
        # Nothing is known about the usage during a gap in which no worker watched.
        covered = min(max(0.0, elapsed - self._last_at), max(_MAX_GAP_SECONDS, 2 * self._interval))
        host = self._host.read() if self._host is not None else {}
        if self._host is None and self._on_host:  # not before: most jobs end before their first sample
            self._host = HostMeter()
        # The first sample has no CPU time of the job's own, beside which that of the host would say nothing.
        self.totals.add(values | (host if "cpu_percent" in values else {}), covered)
        self._last_at = elapsed
        for name, value in values.items():
            total, count = self._sums.get(name, (0.0, 0))
            self._sums[name] = (total + value, count + 1)
            self._maxima[name] = max(value, self._maxima.get(name, value))
        if elapsed < self._row_at:
            return None
        self._row_at = elapsed + self._interval * (1 + elapsed // _INTERVAL_GROWTH_SECONDS)
        return self.flush()

    def flush(self) -> dict[str, float] | None:
        averaged = {name: total / count for name, (total, count) in self._sums.items() if name.endswith(_AVERAGED)}
        row = self._maxima | averaged
        self._sums, self._maxima = {}, {}
        return row or None


def _to_int(value: float | None) -> int | None:
    return None if value is None else int(value)
