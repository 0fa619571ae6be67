"""Current usage of a container, from the engine's stats, and of its GPUs, from the driver."""

import logging
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from worker.backends.docker.engine.client import Engine, EngineError
from worker.backends.docker.gpu.host_gpus import GpuMonitor

logger = logging.getLogger(__name__)

_FIRST_SECONDS = 0.5
_NANOSECONDS = 1e9
_SECONDS_DIGITS = 19  # 2026-11-21T07:27:29


@dataclass(frozen=True, slots=True)
class StatsSample:
    """One reading of a container's counters."""

    at: float  # seconds since the epoch, by the engine's clock
    cpu_seconds: float
    values: dict[str, float]

    def since(self, earlier: "StatsSample | None") -> dict[str, float]:
        """Return the values, with the CPU usage since an earlier reading."""
        if earlier is None or self.at <= earlier.at:
            return self.values
        used = max(0.0, self.cpu_seconds - earlier.cpu_seconds) / (self.at - earlier.at)
        return self.values | {"cpu_percent": 100 * used}


def read(stats: dict[str, Any]) -> StatsSample | None:
    """Parse the engine's answer; None for a container that does not run."""
    memory, cpu = stats.get("memory_stats") or {}, stats.get("cpu_stats") or {}
    if "usage" not in memory:
        return None
    values = {
        "memory_bytes": float(memory["usage"] - _file_cache_bytes(memory.get("stats") or {})),
        "processes": float((stats.get("pids_stats") or {}).get("current") or 0),
    }
    networks = (stats.get("networks") or {}).values()
    if networks:
        values["network_received_bytes"] = float(sum(network["rx_bytes"] for network in networks))
        values["network_sent_bytes"] = float(sum(network["tx_bytes"] for network in networks))
    for entry in (stats.get("blkio_stats") or {}).get("io_service_bytes_recursive") or ():
        name = {"read": "disk_read_bytes", "write": "disk_written_bytes"}.get(entry["op"].lower())
        if name is not None:
            values[name] = values.get(name, 0.0) + entry["value"]
    return StatsSample(_parse_time(stats["read"]), cpu["cpu_usage"]["total_usage"] / _NANOSECONDS, values)


def _file_cache_bytes(counters: dict[str, int]) -> int:
    """Return the bytes of the cache of files, which the kernel drops before it refuses memory (cgroup 1, cgroup 2)."""
    kinds = ("active_file", "inactive_file")
    return sum(counters.get(f"total_{kind}", counters.get(kind, 0)) for kind in kinds)


def _parse_time(text: str) -> float:
    """Parse a time with nanoseconds, which `datetime` cannot represent."""
    whole = datetime.fromisoformat(text[:_SECONDS_DIGITS] + "+00:00").timestamp()
    fraction = text[_SECONDS_DIGITS:].rstrip("Z")
    return whole + float(f"0{fraction}" if fraction else 0)


class ContainerSampler:
    """Queries stats in other threads: the engine takes up to a second to answer, and the driver takes time, too."""

    def __init__(self, engine: Engine, gpus: GpuMonitor) -> None:
        self._engine = engine
        self._gpus = gpus
        self._pool = ThreadPoolExecutor(4, thread_name_prefix="docker-stats")
        self._lock = threading.Lock()
        self._queried: dict[str, Future[StatsSample | None]] = {}
        self._last: dict[str, StatsSample] = {}

    def sample(self, container: str, gpus: tuple[str, ...]) -> dict[str, float]:
        """Return the answer to the previous query, and query again; empty while nothing is known."""
        with self._lock:
            requested = self._queried.get(container)
            if requested is None:
                requested = self._queried[container] = self._pool.submit(self._query, container, gpus)
        try:
            reading = requested.result(0 if container in self._last else _FIRST_SECONDS)
        except TimeoutError:
            return {}
        with self._lock:
            self._queried[container] = self._pool.submit(self._query, container, gpus)
            if reading is None:
                return {}
            earlier, self._last[container] = self._last.get(container), reading
        return reading.since(earlier)

    def forget(self, container: str) -> None:
        with self._lock:
            self._queried.pop(container, None)
            self._last.pop(container, None)

    def _query(self, container: str, gpus: tuple[str, ...]) -> StatsSample | None:
        try:
            sample = read(self._engine.call(lambda api: api.stats(container, stream=False, one_shot=True)))
        except EngineError as error:
            logger.info("stats_not_read", extra={"container": container, "error": str(error)})
            return None
        return sample and replace(sample, values=sample.values | self._gpus.sample(gpus))
