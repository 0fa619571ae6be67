"""Brings what a job writes on its host to the stores: its output, its metrics."""

import errno
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
from core.jobs.measured import Stored
from core.settings.api import MetricSettings
from worker.holes import punch

BLOCK_BYTES = 1024**2
FREE_BYTES = 16 * 1024**2
MAX_METRIC_LINE = 64 * 1024
MAX_METRIC_NAMES = 200
BATCH_VALUES = 20_000
"""Values of metrics in one batch, read or written."""
_BATCH_BLOCKS = 4
_SHARES = 16
_SPREAD = 2_654_435_761  # 2**32 over the golden ratio: its multiples are spread evenly
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

    def after_hole(self, offset: int) -> int:
        """The first byte from `offset` on that the disk holds; the file's end where there is none."""
        descriptor = self._open()
        if descriptor is None:
            return offset
        try:
            return os.lseek(descriptor, offset, os.SEEK_DATA)
        except OSError as error:
            return max(offset, self.size) if error.errno == errno.ENXIO else offset

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
    """Reads the job's metrics file, a batch at a time: JSON lines, each a step, a time and some numbers.

    What is not such a line is passed over: a job must not fail for a metric. Of each sixteenth of the values that are
    stored of a job, half as many lines are taken as of the one before, so that a long run keeps its beginning and its
    end; lines are chosen by a hash of their number, so that kinds of lines that take turns are all kept.

    Args:
        source: The file.
        job_id: Whose metrics these are.
        attempt: Which attempt's.
        settings: How many values and names are stored of a job.
        stored: What is stored already; lines before its offset are passed over.
    """

    def __init__(
        self, source: SourceFile, job_id: str, attempt: int, settings: MetricSettings, stored: Stored | None = None
    ) -> None:
        stored = stored or Stored()
        self._source = source
        self._key = {"job_id": job_id, "attempt": attempt, "source": "job"}
        self._settings = settings
        self._offset = stored.offset
        self._values = stored.values
        # A name is one object, however many rows have it.
        self._names = {name: name for name in sorted(stored.names)}
        self._lines = 0
        self._skipping = False
        self.more = False
        """Whether there were more lines than one batch holds."""
        self.left_out: dict[str, str] = {}
        """What is left out, by reason: a sentence that names the limit."""

    def read(self) -> list[dict[str, Any]]:
        """Rows for the next complete lines, of one batch at most."""
        rows: list[dict[str, Any]] = []
        values = 0
        self.more = True
        for _ in range(_BATCH_BLOCKS):
            data = self._source.read(self._offset, BLOCK_BYTES)
            end = data.rfind(b"\n")
            if end < 0:
                if len(data) > MAX_METRIC_LINE:  # no metric is so long: pass it over in pieces
                    self._offset = self._source.after_hole(self._offset + len(data))
                    self._skipping = True
                    continue
                self.more = False
                break
            for line in data[: end + 1].splitlines(keepends=True):
                row = None if self._skipping else self._row(line)
                self._skipping = False
                self._offset += len(line)
                if row is not None:
                    rows.append(row)
                    values += len(row["values"])
                    if values >= BATCH_VALUES:
                        return rows
        return rows

    def _row(self, line: bytes) -> dict[str, Any] | None:
        if line.isspace():
            return None
        most = self._settings.values
        self._lines += 1
        stride = 1 << (self._values * _SHARES // most)
        if (self._lines * _SPREAD >> 16) % stride:
            self._leave_out_values()
            return None
        found = parse_metric(line)
        if found is None:
            return None
        step, at, given = found
        values = self._named(given)
        if not values:
            return None
        if self._values + len(values) > most:
            self._leave_out_values()
            return None
        self._values += len(values)
        return self._key | {"offset": self._offset, "step": step, "at": at, "values": values}

    def _named(self, given: dict[str, float | None]) -> dict[str, float | None]:
        """The values whose names are among the first that the job had."""
        values: dict[str, float | None] = {}
        for name, value in given.items():
            if name not in self._names and len(self._names) < self._settings.names:
                self._names[name] = name
            if name in self._names:
                values[self._names[name]] = value
        if len(values) < len(given):
            self.left_out.setdefault(
                "metric_names_limit",
                f"Of its metrics {self._settings.names:,} names are stored (GRADIENT_METRICS__NAMES): values of later "
                "names are left out.",
            )
        return values

    def _leave_out_values(self) -> None:
        self.left_out.setdefault(
            "metric_values_limit",
            f"Of its metrics {self._settings.values:,} values are stored at most (GRADIENT_METRICS__VALUES): the more "
            "there are, the more lines are left out.",
        )


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
