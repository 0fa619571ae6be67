"""DogStatsD: the metrics in datagrams, and the rows of a job's metrics file that they become.

A datagram has one metric a line: `name:value|type|@rate|#tag,key:value`.
"""

from __future__ import annotations

import json
import logging
import math
import os
import stat
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from core.jobs.tracking.metric_limits import MAX_NAME, MetricLimits
from core.system.untrusted_folders import opened_folder

logger = logging.getLogger(__name__)

DATAGRAM_BYTES = 65_535
DROPPED_METRIC = "statsd_dropped"  # name of the metric with the number of a job's dropped values
MAX_ROWS_PER_SECOND = 100
_RATE_HALVING_ROWS = 100_000
_MAX_NAMES = MetricLimits().names
_FILE = "metrics.jsonl"
_FLAGS = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_COUNTER = "c"
_KINDS = frozenset({_COUNTER, "g", "ms", "h", "d"})
_JOB_TAG = "container_name:"
_CLIENT_METRICS_PREFIX = "datadog.dogstatsd.client."  # metrics of the client library about itself, which are ignored
_OTHER_PREFIXES = ("_e{", "_sc|")


class Sample(NamedTuple):
    """One value, with its metric, its kind, and the job that the sender names."""

    name: str
    kind: str
    value: float
    job_id: str


def parse(data: bytes) -> tuple[list[Sample], int]:
    """Return the samples of a datagram, and the number of malformed lines; counters are scaled up by their rate."""
    samples: list[Sample] = []
    malformed = 0
    for line in data.decode(errors="replace").split("\n"):
        if not line or line.startswith((_CLIENT_METRICS_PREFIX, *_OTHER_PREFIXES)):
            continue
        sample = _parse_sample(line)
        if sample is None:
            malformed += 1
        else:
            samples.append(sample)
    return samples, malformed


def _parse_sample(line: str) -> Sample | None:
    name, colon, rest = line.partition(":")
    value_text, *fields = rest.split("|")
    if not colon or not fields or fields[0] not in _KINDS:
        return None
    if not name or len(name) > MAX_NAME or not name.isprintable():
        return None
    value, rate = _parse_number(value_text), 1.0
    job_id = ""
    for part in fields[1:]:
        if part.startswith("@"):
            rate = _parse_number(part[1:]) or 0.0
        elif part.startswith("#"):
            job_id = next((tag[len(_JOB_TAG) :] for tag in part[1:].split(",") if tag.startswith(_JOB_TAG)), "")
    if value is None or not 0 < rate <= 1:
        return None
    counted = value / rate if fields[0] == _COUNTER else value
    return Sample(name, fields[0], counted, job_id) if math.isfinite(counted) else None


def _parse_number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


@dataclass
class StatsdRows:
    """The values that an attempt has sent, as rows of its metrics file, with a limit on their rate."""

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

    def receive(self, data: bytes, job_id: str) -> None:
        """Take a datagram of this job; values that name another job, or are malformed, are dropped and counted."""
        samples, malformed = parse(data)
        self.dropped += malformed
        for sample in samples:
            if sample.job_id == job_id:
                self._add(sample)
            else:
                self.dropped += 1

    def _add(self, sample: Sample) -> None:
        """Add a value to the current row, or to a new one if that row has the metric already."""
        if sample.name not in self.totals and len(self.totals) >= _MAX_NAMES - 1:
            self.dropped += 1
            return
        value = self.totals.get(sample.name, 0.0) + sample.value if sample.kind == _COUNTER else sample.value
        self.totals[sample.name] = value
        if not self.rows or sample.name in self.rows[-1]:
            if not self.rows or len(self.rows) + self._in_second < self.rows_per_second:
                self.rows.append({"time": time.time()})
            else:
                self.dropped += 1  # the row keeps only the latest value
        self.rows[-1][sample.name] = value

    def take(self) -> list[dict[str, float]]:
        """Return the rows to write now; none if this second's limit is reached."""
        now = time.monotonic()
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


def append_rows(control: Path, rows: list[dict[str, float]]) -> None:
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
                    if ours.st_size == 0 and theirs.st_mode & stat.S_IWOTH:
                        os.fchmod(descriptor, 0o666)  # the job may run as any user
                    os.write(descriptor, text.encode())
            finally:
                os.close(descriptor)
    except OSError:  # the disk is full, or the job replaced the file: only its metrics are lost
        logger.info("metrics_not_written", exc_info=True)
