"""Brings what a job writes on its host to the stores: its output, its metrics."""

import json
import math
import os
import stat
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from core.joblogs import LogWriter
from worker.holes import punch

BLOCK_BYTES = 1024**2
FREE_BYTES = 16 * 1024**2
MAX_METRIC_LINE = 64 * 1024
MAX_METRIC_NAMES = 200
MAX_METRIC_ROWS = 100_000
_LARGEST = 10**300
_LATEST = 2**33  # in the year 2242; a time near year 9999 leaves the calendar in other time zones
_STEP_NAMES = frozenset({"step", "time"})


class SourceFile:
    """A file that a job writes and we follow; the job may do with it what it likes.

    Links are not followed, nothing but a regular file is read, and a file that the job removes after it was opened
    is still read to its end.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None
        self._freed = 0

    def read(self, offset: int, size: int) -> bytes:
        """At most `size` bytes from `offset`; nothing if there is no (such) file."""
        descriptor = self._open()
        return os.pread(descriptor, size, offset) if descriptor is not None else b""

    @property
    def size(self) -> int:
        """Bytes in the file now."""
        descriptor = self._open()
        return os.fstat(descriptor).st_size if descriptor is not None else 0

    def free(self, end: int, sync: Callable[[], None]) -> None:
        """Give the disk space before `end` back, in large steps; offsets stay as they are.

        Args:
            end: What comes before it is not needed here any more.
            sync: Makes the copy outlast a power cut, which must come first.
        """
        if end - self._freed < FREE_BYTES or self._descriptor is None:
            return
        sync()
        if punch(self._descriptor, self._freed, end):
            self._freed = end

    def close(self) -> None:
        """Close the file."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _open(self) -> int | None:
        if self._descriptor is None:
            flags = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            descriptor = None
            for mode in (os.O_RDWR, os.O_RDONLY):  # writable, where it may be, to free what is shipped
                with suppress(OSError):
                    descriptor = os.open(self._path, flags | mode)
                    break
            if descriptor is None:
                return None
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                os.close(descriptor)
                return None
            self._descriptor = descriptor
        return self._descriptor


class LogShipper:
    """Ships raw bytes by offset. Output past the log's limit is left out of its middle, never of its end.

    Args:
        source: The file that the wrapper writes.
        writer: The job's log.
        tail_bytes: How much of the end is kept when the limit is passed.
    """

    def __init__(self, source: SourceFile, writer: LogWriter, tail_bytes: int) -> None:
        self._source = source
        self._writer = writer
        self._tail_bytes = tail_bytes

    def ship(self) -> int:
        """Ship what is there now, up to the log's limit; the number of bytes."""
        shipped = 0
        while (room := self._writer.room - self._tail_bytes) > 0:
            data = self._source.read(self._writer.position, min(BLOCK_BYTES, room))
            if not data:
                break
            self._writer.append(data, _now_ms())
            shipped += len(data)
            self._source.free(self._writer.position, self._writer.sync)
        if room <= 0:
            self._source.free(self._source.size - self._tail_bytes, self._writer.sync)
        return shipped

    def finish(self) -> None:
        """Ship the rest; where the log is full, a mark of what is left out, and the end."""
        self.ship()
        rest = self._source.size - self._writer.position
        if rest > self._tail_bytes:
            resume = self._source.size - self._tail_bytes
            self._writer.append_gap(resume - self._writer.position, resume, _now_ms())
        while data := self._source.read(self._writer.position, BLOCK_BYTES):
            self._writer.append(data, _now_ms())
        self._writer.sync()


class MetricsReader:
    """Reads the job's metrics file: JSON lines, each a step, a time and some numbers.

    What is not such a line is passed over: a job must not fail for a metric. Past MAX_METRIC_ROWS lines only every
    second is kept, then every fourth, and so on.

    Args:
        source: The file.
        job_id: Whose metrics these are.
        attempt: Which attempt's.
        offset: Where to begin; earlier lines are stored already.
    """

    def __init__(self, source: SourceFile, job_id: str, attempt: int, offset: int = 0) -> None:
        self._source = source
        self._key = {"job_id": job_id, "attempt": attempt, "source": "job"}
        self._offset = offset
        self._lines = 0
        self._skipping = False

    def read(self) -> list[dict[str, Any]]:
        """Rows for the complete lines that came since."""
        rows: list[dict[str, Any]] = []
        while data := self._source.read(self._offset, BLOCK_BYTES):
            end = data.rfind(b"\n")
            if end < 0:
                if len(data) > MAX_METRIC_LINE:  # no metric is so long: pass it over in pieces
                    self._offset += len(data)
                    self._skipping = True
                    continue
                break
            for line in data[: end + 1].splitlines(keepends=True):
                row = None if self._skipping else self._row(line)
                self._skipping = False
                if row is not None:
                    rows.append(row)
                self._offset += len(line)
        return rows

    def _row(self, line: bytes) -> dict[str, Any] | None:
        found = parse_metric(line)
        if found is None:
            return None
        self._lines += 1
        stride = 1 << max(0, (self._lines // MAX_METRIC_ROWS).bit_length())
        if self._lines > MAX_METRIC_ROWS and self._lines % stride:
            return None
        step, at, values = found
        return self._key | {"offset": self._offset, "step": step, "at": at, "values": values}


def parse_metric(line: bytes) -> tuple[float | None, datetime, dict[str, float | None]] | None:
    """Step, time and values of one line; None if it is not a metric.

    A value that is not finite is kept as None: that a loss became NaN is worth knowing, and JSON has no word for it.
    """
    if len(line) > MAX_METRIC_LINE:
        return None
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict):
        return None
    numbers = {str(k): float(v) for k, v in found.items() if _is_number(v)}
    names = {k: k[:100].encode(errors="replace").decode() for k in numbers if k not in _STEP_NAMES}
    values = {name: numbers[k] if math.isfinite(numbers[k]) else None for k, name in names.items()}
    if not values or len(values) > MAX_METRIC_NAMES:
        return None
    step = numbers.get("step")
    return (step if step is not None and math.isfinite(step) else None), _time(numbers.get("time")), values


def system_row(job_id: str, attempt: int, elapsed: float, values: dict[str, float]) -> dict[str, Any]:
    """The row of one sample of what the job uses, `elapsed` seconds after its start."""
    return {
        "job_id": job_id,
        "attempt": attempt,
        "source": "system",
        "offset": int(elapsed * 1000),
        "step": None,
        "at": datetime.now(UTC),
        "values": values,
    }


def _is_number(value: object) -> bool:
    if isinstance(value, float):
        return True
    # A larger whole number has no floating-point value.
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < _LARGEST


def _time(seconds: float | None) -> datetime:
    if seconds is None or not 0 <= seconds <= _LATEST:  # also refuses NaN
        return datetime.now(UTC)
    return datetime.fromtimestamp(seconds, UTC)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
