"""Metrics in the lines of a job's log, by the expressions that the job was submitted with."""

import math
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from core.jobs.spec.metric_patterns import parse_metric_patterns
from core.jobs.tracking.metrics import LOG_STREAM, StoredSummary
from worker.attempt.outputs.metric_rows import MetricRows

_STYLE = re.compile(rb"\x1b\[[0-9;]*[A-Za-z]")
_STEP = "step"
_MAX_LINE = 64 * 1024


class LogMetrics:
    """Finds metrics in output as it is shipped. Each state of a progress bar is a line.

    `prefix`: only lines that begin with it count, without it. `read_line`: called with each line that counts.
    """

    def __init__(
        self,
        patterns: Sequence[str],
        rows: MetricRows,
        stored: StoredSummary,
        *,
        prefix: bytes = b"",
        read_line: Callable[[str], None] = lambda _text: None,
    ) -> None:
        self._read_line = read_line
        self._prefix = prefix
        self._begins, self._counts = True, False
        self._patterns = parse_metric_patterns(patterns)
        self._metric_rows = rows
        self._rows: list[dict[str, Any]] = []
        self._partial = b""
        self._step: float | None = None
        self._unmatched = {pattern.name for pattern in self._patterns} - stored.names - {_STEP}
        self.position = stored.offsets.get(LOG_STREAM, 0)  # offset in the output from which on it is looked through

    def feed(self, offset: int, data: bytes) -> None:
        """Look through output that begins at this offset."""
        if offset != self.position:  # what lies between was left out
            self._partial, self._begins = b"", True
        text, start = self._partial + data, offset - len(self._partial)
        end = max(text.rfind(b"\n"), text.rfind(b"\r")) + 1
        for line in text[:end].splitlines(keepends=True):
            self._match(line, start)
            start += len(line)
        self.position = offset + len(data)
        self._partial = text[end:][-_MAX_LINE:]

    def take(self) -> list[dict[str, Any]]:
        """Return the rows that were found since the last call."""
        rows, self._rows = self._rows, []
        return rows

    def finish(self) -> None:
        """Look through a last line without an end, and tell which patterns matched no line."""
        self._match(self._partial, self.position - len(self._partial))
        self._partial = b""
        if self._unmatched:
            names = ", ".join(sorted(self._unmatched))
            self._metric_rows.left_out["metric_unmatched"] = f"No line of the log matched --metric {names}."

    def _match(self, line: bytes, offset: int) -> None:
        if self._begins:  # else it is a later state of a progress bar
            self._counts = line.startswith(self._prefix)
            line = line[len(self._prefix) :]
        self._begins = line.endswith(b"\n")
        if not self._counts:
            return
        text = _STYLE.sub(b"", line[-_MAX_LINE:]).decode(errors="replace")
        self._read_line(text)
        values: dict[str, float] = {}
        for name, expression in self._patterns:
            if match := expression.search(text):
                with suppress(ValueError, TypeError):  # no number, or an optional group
                    values[name] = float(match[1])
        step = values.pop(_STEP, self._step)
        self._step = step if step is None or math.isfinite(step) else None
        if values:
            self._unmatched -= values.keys()
            self._rows += self._metric_rows.add(LOG_STREAM, offset, self._step, datetime.now(UTC), values)
