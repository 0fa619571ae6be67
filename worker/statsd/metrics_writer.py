"""Writes metric values to the metrics files of the attempts that sent them, with a rate limit for each."""

import json
import logging
import os
import stat
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from core.jobs.tracking.metrics import MetricLimits
from core.system.untrusted_folders import opened_folder
from worker.statsd.protocol import COUNTER, Sample

logger = logging.getLogger(__name__)

DROPPED_METRIC = "statsd_dropped"  # name of the metric with the number of a job's dropped values
MAX_ROWS_PER_SECOND = 100
_RATE_HALVING_ROWS = 100_000
_MAX_ATTEMPTS = 1000
_MAX_NAMES = MetricLimits().names
_FILE = "metrics.jsonl"
_FLAGS = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class Sender(NamedTuple):
    """Sender of a datagram: a job and its running attempt."""

    job_id: str
    attempt: int


@dataclass(slots=True)
class _AttemptBuffer:
    totals: dict[str, float] = field(default_factory=dict)
    rows: list[dict[str, float]] = field(default_factory=list)
    written: int = 0
    dropped: int = 0
    _reported_drops: int = 0
    _second: float = 0.0
    _in_second: int = 0

    @property
    def rows_per_second(self) -> int:
        """Rows accepted per second: the fewer, the more were written, so that they cannot fill the disk."""
        return max(1, MAX_ROWS_PER_SECOND >> (self.written // _RATE_HALVING_ROWS))

    def add(self, sample: Sample) -> None:
        """Add a value to the current row, or to a new one if that row has the metric already."""
        if sample.name not in self.totals and len(self.totals) >= _MAX_NAMES - 1:
            self.dropped += 1
            return
        value = self.totals.get(sample.name, 0.0) + sample.value if sample.kind == COUNTER else sample.value
        self.totals[sample.name] = value
        if not self.rows or sample.name in self.rows[-1]:
            if not self.rows or len(self.rows) + self._in_second < self.rows_per_second:
                self.rows.append({"time": time.time()})
            else:
                self.dropped += 1  # the row keeps only the latest value
        self.rows[-1][sample.name] = value

    def take(self, now: float) -> list[dict[str, float]]:
        """Return the rows to write now; none if this second's limit is reached."""
        if now - self._second >= 1:
            self._second, self._in_second = now, 0
            if self.dropped != self._reported_drops:
                self._reported_drops = self.dropped
                self.rows.append({"time": time.time(), DROPPED_METRIC: float(self.dropped)})
        if self._in_second >= self.rows_per_second:
            return []
        rows, self.rows = self.rows, []
        self._in_second += len(rows)
        self.written += len(rows)
        return rows


class Aggregator:
    """Gathers values by attempt, and writes them periodically."""

    def __init__(self, attempts: Path) -> None:
        self._attempts = attempts
        self._buffers: dict[Sender, _AttemptBuffer] = {}

    def add(self, sender: Sender, sample: Sample) -> None:
        """Add a sender's value; a value that names another job is dropped and counted."""
        buffer = self._buffer_for(sender)
        if buffer is None:
            return
        if sample.job_id != sender.job_id:
            buffer.dropped += 1
        else:
            buffer.add(sample)

    def drop(self, sender: Sender, count: int) -> None:
        buffer = self._buffer_for(sender) if count else None
        if buffer is not None:
            buffer.dropped += count

    def flush(self) -> None:
        """Write the gathered values, and forget attempts that are over."""
        now = time.monotonic()
        for sender, buffer in list(self._buffers.items()):
            control = self._control_folder(sender)
            if not control.is_dir():
                del self._buffers[sender]
            elif rows := buffer.take(now):
                _append_rows(control, rows)

    def _buffer_for(self, sender: Sender) -> _AttemptBuffer | None:
        if sender not in self._buffers:
            if len(self._buffers) >= _MAX_ATTEMPTS or not self._control_folder(sender).is_dir():
                return None
            self._buffers[sender] = _AttemptBuffer()
        return self._buffers[sender]

    def _control_folder(self, sender: Sender) -> Path:
        return self._attempts / f"{sender.job_id}-{sender.attempt}" / "control"


def _append_rows(control: Path, rows: list[dict[str, float]]) -> None:
    """Append rows to the metrics file, which the job writes too and may have replaced by anything."""
    # On a new line: the job may have left an unfinished one.
    text = "\n" + "".join(json.dumps(row) + "\n" for row in rows)
    try:
        with opened_folder(control) as folder:
            descriptor = os.open(_FILE, _FLAGS, 0o644, dir_fd=folder)
            try:
                if stat.S_ISREG(os.fstat(descriptor).st_mode):
                    ours, theirs = os.fstat(descriptor), os.fstat(folder)
                    if ours.st_size == 0 and ours.st_uid != theirs.st_uid:
                        os.fchown(descriptor, theirs.st_uid, theirs.st_gid)
                    os.write(descriptor, text.encode())
            finally:
                os.close(descriptor)
    except OSError:  # the disk is full, or the job replaced the file: only its metrics are lost
        logger.info("metrics_not_written", exc_info=True)
