"""The NVIDIA GPUs of this host: their properties, their current use, and whether they are free.

A driver can hang, for example after a GPU fell off the bus, and must not hang anything else: it is queried in a thread
of its own, one query at a time, and callers wait only some seconds for the answer. For samples it is queried at most
once a second; whether a GPU is free is never answered from a cache.
"""

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pynvml

from core.formatting import MIB
from worker.backends.docker.gpu import nvml
from worker.backends.docker.gpu.nvml import GpuSample, Reading, XidWatch

logger = logging.getLogger(__name__)

T = TypeVar("T")

PAUSE_SECONDS = 1.0
PAUSE_FACTOR = 5
DRIVER_TIMEOUT_SECONDS = 5.0
_MAX_NAMED_PROCESSES = 3
_IDLE_MAX_MEMORY_BYTES = 512 * MIB  # of a GPU that is free: a desktop's or a monitor's use, and not a training's
_IDLE_MAX_PERCENT = 20.0


class DriverTimeout(Exception):
    """The driver does not answer."""


class GpuMonitor:
    """The GPUs of this host; usable from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._query: Future[Reading] | None = None
        self._queried_at = self._next_query_at = 0.0
        self._watches: dict[str, XidWatch] = {}

    def read(self, *, refresh: bool = False) -> Reading:
        """Return the GPUs, their use and faults, at most about a second old, or fresh on demand.

        Raises `DriverTimeout`: the driver did not answer in time.
        """
        with self._lock:
            if self._query is None or (self._query.done() and (refresh or time.monotonic() >= self._next_query_at)):
                self._queried_at = time.monotonic()
                self._query = _begin(self._read_gpus)
            # Only the first callers wait for a driver that hangs.
            query, timeout = self._query, self._queried_at + DRIVER_TIMEOUT_SECONDS - time.monotonic()
        try:
            return query.result(max(0.0, timeout))
        except TimeoutError:
            raise DriverTimeout(f"the driver has not answered for {DRIVER_TIMEOUT_SECONDS:.0f} seconds") from None

    def _read_gpus(self) -> Reading:
        began, gpus = time.monotonic(), nvml.read_gpus()
        now = time.monotonic()
        self._next_query_at = now + max(PAUSE_SECONDS, PAUSE_FACTOR * (now - began))
        return gpus

    def indices(self) -> tuple[str, ...]:
        """Return the indices of the GPUs, in the driver's order; empty without a driver, or with a silent one."""
        try:
            return tuple(sample.gpu.index for sample in self.read().samples)
        except DriverTimeout as error:
            logger.warning("gpus_not_counted", extra={"error": str(error)})
            return ()

    def taken(self, names: Iterable[str]) -> dict[str, str]:
        """Return which of these GPUs something uses, and what.

        With a silent driver, all of them; without a driver that reports any, none. `names`: indices or UUIDs; must not
        include GPUs that our jobs hold.
        """
        try:
            seen = self.read(refresh=True).samples
        except DriverTimeout as error:
            return dict.fromkeys(names, str(error))
        if not seen:
            return {}
        reasons = {name: self._busy_reason(sample for sample in seen if sample.is_named(name)) for name in names}
        return {name: reason for name, reason in reasons.items() if reason is not None}

    def watch(self, names: Iterable[str]) -> None:
        """Collect the errors of these GPUs from now on, for `faults`."""
        for name in names:
            if name in self._watches:
                _query_driver(self._watches.pop(name).end)
            if (watch := _query_driver(partial(XidWatch, name))) is not None:
                self._watches[name] = watch

    def faults(self, names: Iterable[str]) -> dict[str, str]:
        """Return which of these GPUs are broken, and how that shows; ends `watch`. With a silent driver, none."""
        try:
            reading = self.read(refresh=True)
        except DriverTimeout:
            return {}
        faults = {}
        for name in names:
            watch = self._watches.pop(name, None)
            index = next((sample.gpu.index for sample in reading.samples if sample.is_named(name)), name)
            reasons = (_query_driver(watch.end) if watch else None, reading.faults.get(index))
            if why := "; ".join(filter(None, reasons)):
                faults[name] = why
        return faults

    def facts(self, names: Sequence[str]) -> list[dict[str, Any]]:
        """Return the properties of these GPUs, to be stored; only the name of a GPU that no driver reports."""
        seen = self._read_or_none()
        return [
            next((sample.gpu.facts() for sample in seen if sample.is_named(name)), {"index": name}) for name in names
        ]

    def sample(self, names: Sequence[str]) -> dict[str, float]:
        """Return the current use of these GPUs, numbered from 0 as their job numbers them."""
        values: dict[str, float | None] = {}
        seen = self._read_or_none() if names else ()
        for number, name in enumerate(names):
            for use in (sample.use for sample in seen if sample.is_named(name)):
                values[f"gpu{number}_percent"] = use.percent
                values[f"gpu{number}_memory_bytes"] = float(use.memory)
                values[f"gpu{number}_watts"] = use.watts
                values[f"gpu{number}_celsius"] = use.celsius
        return {name: value for name, value in values.items() if value is not None}

    def _read_or_none(self) -> tuple[GpuSample, ...]:
        try:
            return self.read().samples
        except DriverTimeout:
            return ()

    def _busy_reason(self, samples: Iterable[GpuSample]) -> str | None:
        sample = next(iter(samples), None)
        if sample is None:
            return "the driver does not list it"
        use = sample.use
        if use.slowdown is not None:
            return f"its hardware slows it down: {use.slowdown}"
        if use.memory <= _IDLE_MAX_MEMORY_BYTES and (use.percent or 0.0) <= _IDLE_MAX_PERCENT:
            return None
        what = f"{use.memory / MIB:,.0f} MiB in use" + (f", {use.percent:.0f} % busy" if use.percent else "")
        return f"{what}, by {_describe_processes(use.pids)}"


def _begin(query: Callable[[], T]) -> Future[T]:
    """Ask the driver in a thread of its own."""
    answer: Future[T] = Future()

    def run() -> None:
        try:
            answer.set_result(query())
        except BaseException as error:  # noqa: BLE001 - it is raised in the caller's thread
            answer.set_exception(error)

    threading.Thread(target=run, name="nvidia", daemon=True).start()
    return answer


def _query_driver(query: Callable[[], T]) -> T | None:
    """Return the driver's answer; None if it refuses, or takes too long."""
    with contextlib.suppress(TimeoutError, pynvml.NVMLError):
        return _begin(query).result(DRIVER_TIMEOUT_SECONDS)
    return None


def _describe_processes(pids: Sequence[int]) -> str:
    """Describe processes: `process 4711 (python)`."""
    if not pids:
        return "by no process known to the driver"
    named = [f"{pid}{_program_name(pid)}" for pid in pids[:_MAX_NAMED_PROCESSES]]
    more = f" and {len(pids) - _MAX_NAMED_PROCESSES} more" if len(pids) > _MAX_NAMED_PROCESSES else ""
    return f"process{'es' * (len(pids) > 1)} {', '.join(named)}{more}"


def _program_name(pid: int) -> str:
    try:
        return f" ({Path(f'/proc/{pid}/comm').read_text(errors='replace').strip()})"
    except OSError:  # ended meanwhile, or hidden from us
        return ""
