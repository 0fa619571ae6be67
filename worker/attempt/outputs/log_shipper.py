import ctypes
import errno
import json
import math
import os
import stat
import time
from collections.abc import Callable
from contextlib import closing, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from core.jobs.tracking.metrics import (
    EVENT_FILES_STREAM,
    FILE_STREAM,
    MAX_TIME,
    STREAM_BYTES,
    MetricLimits,
    StoredSummary,
)
from core.storage.joblogs.render import RedrawnRows
from core.storage.joblogs.writer import LogSink

BLOCK_BYTES = 1024**2
RELEASE_BYTES = 16 * 1024**2
MAX_METRIC_LINE = 64 * 1024
MAX_METRIC_NAMES = 200
BATCH_VALUES = 20_000  # values of metrics in one batch, read or written
_BATCH_BLOCKS = 4
_END_BYTES = 1 << 14
_COMPARED_BYTES = 64  # of the last line that was read
_QUOTED_BYTES = 80  # of a malformed line
_THINNING_STEPS = 16
_HASH_MULTIPLIER = 2_654_435_761  # 2**32 over the golden ratio: its multiples are spread evenly
_MAX_VALUE = 10**300
_STEP_NAMES = frozenset({"step", "time"})
_FALLOC_FL_KEEP_SIZE = 0x01
_FALLOC_FL_PUNCH_HOLE = 0x02
_UNSUPPORTED = {errno.EOPNOTSUPP, errno.ENOSYS, errno.EBADF, errno.EPERM}

_fallocate = ctypes.CDLL(None, use_errno=True).fallocate
_fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]


class SourceFile:
    """A file that the job writes and the worker follows; the job may do anything with it.

    Links are not followed, only a regular file is read, and a file that the job removes after it was opened is still
    read to its end.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None
        self._released = 0

    def read(self, offset: int, size: int) -> bytes:
        """Read at most `size` bytes from `offset`; nothing if there is no regular file."""
        descriptor = self.open()
        return os.pread(descriptor, size, offset) if descriptor is not None else b""

    def skip_hole(self, offset: int) -> int:
        """Return the first offset from `offset` on that has data on disk; the file's end if there is none."""
        descriptor = self.open()
        if descriptor is None:
            return offset
        try:
            return os.lseek(descriptor, offset, os.SEEK_DATA)
        except OSError as error:
            return max(offset, self.size) if error.errno == errno.ENXIO else offset

    @property
    def size(self) -> int:
        descriptor = self.open()
        return os.fstat(descriptor).st_size if descriptor is not None else 0

    @property
    def written_at(self) -> datetime:
        """Time of the last write to it; at most now."""
        descriptor = self.open()
        now = datetime.now(UTC)
        if descriptor is None:
            return now
        return min(parse_time(os.fstat(descriptor).st_mtime, now), now)

    def reopen_replaced(self) -> bool:
        """Open the file that has taken the place of this one, if there is one; return whether there is."""
        if self._descriptor is None:
            return False
        try:
            now = self._path.lstat()
        except OSError:
            return False
        if not stat.S_ISREG(now.st_mode) or os.path.samestat(now, os.fstat(self._descriptor)):
            return False
        self.close()
        return self.open() is not None

    def free(self, end: int, sync: Callable[[], None]) -> None:
        """Free the disk space before `end`, in large steps; offsets stay as they are.

        `sync`: makes the stored copy durable; called first.
        """
        if end - self._released < RELEASE_BYTES or self._descriptor is None:
            return
        sync()
        if _punch_hole(self._descriptor, self._released, end):
            self._released = end

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def open(self) -> int | None:
        if self._descriptor is None and os.path.lexists(self._path):
            flags = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            descriptor = None
            for mode in (os.O_RDWR, os.O_RDONLY):  # writable if allowed, to free what is shipped
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


def read_log_end(control: Path) -> str:
    """Return the last output of a job, and what its wrapper says of signals, from its control folder."""
    text = b""
    for name in ("log", "signals"):
        with closing(SourceFile(control / name)) as file:
            text += file.read(max(0, file.size - _END_BYTES), _END_BYTES) + b"\n"
    return text.decode(errors="replace")


class LogShipper:
    """Ships raw bytes by offset. Output beyond the log's limit is dropped from its middle, never from its end.

    `tail_bytes`: bytes of the end that are kept when the limit is exceeded.
    """

    follow: Callable[[int, bytes], None] | None = None  # gets each block that is stored, with its offset

    def __init__(self, source: SourceFile, writer: LogSink, tail_bytes: int) -> None:
        self._source = source
        self._writer = writer
        self._tail_bytes = tail_bytes
        self._rows = RedrawnRows()

    def ship(self) -> int:
        """Ship new output up to the log's limit; return the number of bytes."""
        shipped = 0
        self._writer.flush()  # before more is read: what is read is accepted
        while (room := self._writer.remaining_bytes - self._tail_bytes) > 0:
            data = self._source.read(self._writer.position, min(BLOCK_BYTES, room))
            if not data:
                break
            self._append(data)
            self._writer.flush()
            shipped += len(data)
            self._source.free(self._writer.position, self._writer.sync)
        if room <= 0:
            self._source.free(self._source.size - self._tail_bytes, self._writer.sync)
        return shipped

    def finish(self) -> None:
        """Ship the rest; if the log is full, a gap marker and the end of the output."""
        self.ship()
        rest = self._source.size - self._writer.position
        if rest > self._tail_bytes:
            resume = self._source.size - self._tail_bytes
            self._writer.append_gap(resume - self._writer.position, resume, _now_ms())
            self._writer.flush()
        while data := self._source.read(self._writer.position, BLOCK_BYTES):
            self._append(data)
            self._writer.flush()
        self._writer.sync()

    def _append(self, data: bytes) -> None:
        offset = self._writer.position
        self._writer.append(self._rows.join(data), _now_ms(), source_bytes=len(data))
        if self.follow is not None:
            self.follow(offset, data)

    def repeat(self, offset: int, follow: Callable[[int, bytes], None]) -> None:
        """Call `follow` for what is stored already from this offset on, as far as the source still has it."""
        end = self._writer.position
        while data := self._source.read(at := self._source.skip_hole(offset), max(0, min(BLOCK_BYTES, end - at))):
            follow(at, data)
            offset = at + len(data)
        self.follow = follow


class MetricsReader:
    """Reads the job's metrics file in batches: JSON lines, each with a step, a time and some numbers.

    A file that is truncated or replaced is read again from its beginning. Malformed lines are skipped, the first is
    told, and in the end their number: a job must not fail for a metric. For each further sixteenth of
    the value limit, half as many lines are taken as before, so that a long run keeps its beginning and its end. Lines
    are chosen by a hash of their number, so that alternating kinds of lines are all kept.

    `earlier`: file for the number of bytes that were read before the file was last truncated or replaced; offsets of
    stored lines go on after them.
    """

    def __init__(
        self,
        source: SourceFile,
        job_id: str,
        attempt: int,
        settings: MetricLimits,
        stored: StoredSummary | None = None,  # metrics stored already; lines before its offset are skipped
        earlier: Path | None = None,
    ) -> None:
        stored = stored or StoredSummary()
        self._earlier_file = earlier
        self._earlier = _read_count(earlier) if earlier is not None else 0
        self._source = source
        self._key = {"job_id": job_id, "attempt": attempt, "source": "job"}
        self._settings = settings
        self._offset = max(0, stored.offsets.get(FILE_STREAM, 0) - self._earlier)
        self._last_read = b""
        self._malformed = 0
        self._resumed = FILE_STREAM in stored.offsets
        self._values = stored.values
        # One string object for each name, shared by all rows.
        self._names = {name: name for name in sorted(stored.names)}
        self._reported = set(stored.reported)
        self._lines = 0
        self._skipping = False
        self.more = False  # true if more lines may follow the last batch
        self.left_out: dict[str, str] = {}  # left-out metrics: by reason, a sentence that names the limit

    def read(self) -> list[dict[str, Any]]:
        """Return rows for the next complete lines, at most one batch; the source of parameters is `params`."""
        self.more = self._offset > 0 or self._source.open() is not None
        return self._read() if self.more else []

    def _read(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = []
        values = 0
        if self._is_rewritten():
            self._restart()
        written_at = self._source.written_at
        for _ in range(_BATCH_BLOCKS):
            data = self._source.read(self._offset, BLOCK_BYTES)
            end = data.rfind(b"\n")
            if end < 0:
                if len(data) > MAX_METRIC_LINE:  # too long for a metric: skip it in pieces
                    self._offset = self._source.skip_hole(self._offset + len(data))
                    self._skipping = True
                    continue
                if self._source.reopen_replaced():
                    self._restart()
                    continue
                self.more = False
                break
            for line in data[: end + 1].splitlines(keepends=True):
                row = None if self._skipping else self._parse_row(line, written_at)
                self._skipping = False
                self._offset += len(line)
                if row is not None:
                    rows.append(row)
                    values += len(row["values"])
                    if values >= BATCH_VALUES:
                        break
            self._last_read = self._source.read(
                max(0, self._offset - _COMPARED_BYTES), min(self._offset, _COMPARED_BYTES)
            )
            if values >= BATCH_VALUES:
                break
        return rows

    def finish(self) -> None:
        """Tell the number of malformed lines, if the first was not the only one."""
        if self._malformed > 1:
            at_least = "At least " if self._resumed else ""
            self.left_out["malformed_metrics"] = (
                f"{at_least}{self._malformed:,} lines of its metrics file were left out."
            )

    def _is_rewritten(self) -> bool:
        size, last = self._source.size, self._last_read
        return size < self._offset or (bool(last) and self._source.read(self._offset - len(last), len(last)) != last)

    def _restart(self) -> None:
        self._earlier += self._offset
        self._offset, self._last_read, self._skipping = 0, b"", False
        if self._earlier_file is not None:
            with suppress(OSError):
                self._earlier_file.write_text(f"{self._earlier}\n", encoding="ascii")
        self.left_out.setdefault(
            "metrics_rewritten",
            "Its metrics file was truncated or replaced: what was read before is kept, and what followed was read from "
            "its beginning.",
        )

    def _parse_row(self, line: bytes, written_at: datetime) -> dict[str, Any] | None:
        if line.isspace():
            return None
        if (params := _parse_params(line)) is not None:
            return self._key | {"source": "params", "values": params}
        if self._is_left_out():
            return None
        found = parse_metric(line, written_at)
        if found is None:
            self._malformed += 1
            text = line.strip()[:_QUOTED_BYTES].decode(errors="replace")
            self.left_out.setdefault(
                "malformed_metric",
                f"Lines of its metrics file that are no JSON object with numbers are left out; the first is {text!r}.",
            )
            return None
        return self._make_row(FILE_STREAM, self._earlier + self._offset, *found)

    def make_row(
        self, stream: int, offset: int, step: float | None, at: datetime, given: dict[str, float | None]
    ) -> dict[str, Any] | None:
        """Return the row of a line of another source; None if the limits leave it out."""
        return None if self._is_left_out() else self._make_row(stream, offset, step, at, given)

    def _is_left_out(self) -> bool:
        self._lines += 1
        stride = 1 << (self._values * _THINNING_STEPS // self._settings.values)
        if (self._lines * _HASH_MULTIPLIER >> 16) % stride:
            self._report_omitted_values()
            return True
        return False

    def _make_row(
        self, stream: int, offset: int, step: float | None, at: datetime, given: dict[str, float | None]
    ) -> dict[str, Any] | None:
        if stream >= EVENT_FILES_STREAM:  # a program that reports a metric twice may write event files beside
            given = {name: value for name, value in given.items() if name not in self._reported}
        values = self._limit_names(given)
        if stream < EVENT_FILES_STREAM:
            self._reported |= values.keys()
        if not values:
            return None
        if self._values + len(values) > self._settings.values:
            self._report_omitted_values()
            return None
        self._values += len(values)
        return self._key | {"offset": stream * STREAM_BYTES + offset, "step": step, "at": at, "values": values}

    def _limit_names(self, given: dict[str, float | None]) -> dict[str, float | None]:
        """Return the values whose names are within the limit on names; the first names seen are kept."""
        values: dict[str, float | None] = {}
        for name, value in given.items():
            if name not in self._names and len(self._names) < self._settings.names:
                self._names[name] = name
            if name in self._names:
                values[self._names[name]] = value
        if len(values) < len(given):
            self.left_out.setdefault(
                "metric_names_limit",
                f"Of its metrics {self._settings.names:,} names are stored: values of later names are left out.",
            )
        return values

    def _report_omitted_values(self) -> None:
        self.left_out.setdefault(
            "metric_values_limit",
            f"Of its metrics {self._settings.values:,} values are stored at most: the more "
            "there are, the more lines are left out.",
        )


def _read_count(file: Path) -> int:
    try:
        return int(file.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return 0


def parse_metric(line: bytes, written_at: datetime) -> tuple[float | None, datetime, dict[str, float | None]] | None:
    """Parse step, time and values of one line; return None if it is not a metric.

    A value that is not finite is kept as None: that a loss became NaN is worth knowing, and JSON cannot express NaN.
    `written_at`: the time of a line without one. Lines that are read together share it: the moments at which they are
    parsed say nothing about the program's pace.
    """
    numbers = {str(k): float(v) for k, v in _parse_object(line).items() if _is_number(v)}
    names = {k: storable_name(k) for k in numbers if k not in _STEP_NAMES}
    values = {name: numbers[k] if math.isfinite(numbers[k]) else None for k, name in names.items()}
    if not values or len(values) > MAX_METRIC_NAMES:
        return None
    step = numbers.get("step")
    return (
        (step if step is not None and math.isfinite(step) else None),
        parse_time(numbers.get("time"), written_at),
        values,
    )


def _parse_params(line: bytes) -> dict[str, Any] | None:
    """Return the parameters of a line such as `{"params": {"lr": 0.01}}`; None if it has none."""
    params = _parse_object(line).get("params") if b'"params"' in line else None
    return params if isinstance(params, dict) else None


def _parse_object(line: bytes) -> dict[str, Any]:
    """Return the JSON object of a line; an empty one if it is none."""
    try:
        found = json.loads(line) if len(line) <= MAX_METRIC_LINE else None
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def storable_name(name: str) -> str:
    """Shorten a metric's name, without what a database refuses: lone surrogates and, in PostgreSQL, NUL."""
    return name[:100].encode(errors="replace").decode().replace("\0", "\N{REPLACEMENT CHARACTER}")


def _is_number(value: object) -> bool:
    if isinstance(value, float):
        return True
    # A larger integer cannot be converted to a float.
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < _MAX_VALUE


def parse_time(seconds: float | None, default: datetime) -> datetime:
    if seconds is None or not 0 <= seconds <= MAX_TIME:  # also refuses NaN
        return default
    return datetime.fromtimestamp(seconds, UTC)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _punch_hole(descriptor: int, start: int, end: int) -> bool:
    """Free the blocks of a file from `start` to `end`; it keeps its size and offsets (Linux's FALLOC_FL_PUNCH_HOLE).

    Returns whether the file system supports it; if not, the space stays taken until the file is deleted.
    """
    if _fallocate(descriptor, _FALLOC_FL_PUNCH_HOLE | _FALLOC_FL_KEEP_SIZE, start, end - start) == 0:
        return True
    number = ctypes.get_errno()
    if number in _UNSUPPORTED:
        return False
    raise OSError(number, os.strerror(number))
