from collections.abc import Iterable
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from core.jobs.tracking.metrics import FILE_STREAM, StoredSummary
from worker.attempt.outputs.log_shipper import SourceFile
from worker.attempt.outputs.metric_lines import MAX_METRIC_LINE, parse_metric
from worker.attempt.outputs.metric_rows import MetricRows

BATCH_VALUES = 20_000  # values of metrics in one batch, read or written
_BLOCK_BYTES = 2 * MAX_METRIC_LINE
_BATCH_BLOCKS = 4
_COMPARED_BYTES = 64  # of the last line that was read
_QUOTED_BYTES = 80  # of a malformed line


class MetricsReader:
    """Reads the job's metrics file in batches: JSON lines, each with a step, a time and some numbers.

    A file that is truncated or replaced is read again from its beginning. Malformed lines are skipped, the first is
    told, and in the end their number: a job must not fail for a metric.

    `stored`: metrics stored already; lines before its offset are skipped. `earlier`: file for the number of bytes that
    were read before the file was last truncated or replaced; offsets of stored lines go on after them.
    """

    def __init__(
        self, source: SourceFile, rows: MetricRows, stored: StoredSummary | None = None, earlier: Path | None = None
    ) -> None:
        offsets = stored.offsets if stored is not None else {}
        self._earlier_file = earlier
        self._earlier = _read_count(earlier) if earlier is not None else 0
        self._source = source
        self._rows = rows
        self._left_out = rows.left_out
        self._offset = max(0, offsets.get(FILE_STREAM, 0) - self._earlier)
        self._last_read = b""
        self._malformed = 0
        self._resumed = FILE_STREAM in offsets
        self._skipping = False
        self.more = False  # true if more lines may follow the last batch

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
            data = self._source.read(self._offset, _BLOCK_BYTES)
            end = data.rfind(b"\n")
            if end < 0:
                if len(data) > MAX_METRIC_LINE:  # skip it in pieces
                    self._report_long_line()
                    self._offset = self._source.skip_hole(self._offset + len(data))
                    self._skipping = True
                    continue
                if self._source.reopen_replaced():
                    self._restart()
                    continue
                self.more = False
                break
            for line in data[: end + 1].splitlines(keepends=True):
                parsed = [] if self._skipping else self._parse(line, written_at)
                self._skipping = False
                self._offset += len(line)
                rows += parsed
                values += sum(len(row["values"]) for row in parsed)
                if values >= BATCH_VALUES:
                    break
            self._last_read = self._source.read(
                max(0, self._offset - _COMPARED_BYTES), min(self._offset, _COMPARED_BYTES)
            )
            if values >= BATCH_VALUES:
                break
        return rows

    def finish(self) -> list[dict[str, Any]]:
        """Return rows for a last line without a line feed; tell the number of malformed lines."""
        rest = b"" if self._skipping else self._source.read(self._offset, MAX_METRIC_LINE)
        rows = list(self._parse(rest, self._source.written_at)) if rest.strip() else []
        self._offset += len(rest)
        if self._malformed > 1:
            at_least = "At least " if self._resumed else ""
            self._left_out["malformed_metrics"] = (
                f"{at_least}{self._malformed:,} lines of the metrics file were left out."
            )
        return rows

    def _is_rewritten(self) -> bool:
        size, last = self._source.size, self._last_read
        return size < self._offset or (bool(last) and self._source.read(self._offset - len(last), len(last)) != last)

    def _restart(self) -> None:
        self._earlier += self._offset
        self._offset, self._last_read, self._skipping = 0, b"", False
        if self._earlier_file is not None:
            with suppress(OSError):
                self._earlier_file.write_text(f"{self._earlier}\n", encoding="ascii")
        self._left_out.setdefault(
            "metrics_rewritten",
            "The metrics file was truncated or replaced: earlier values are kept, and the new file was read from "
            "its beginning.",
        )

    def _parse(self, line: bytes, written_at: datetime) -> Iterable[dict[str, Any]]:
        if line.isspace():
            return []
        if len(line) > MAX_METRIC_LINE:
            self._report_long_line()
            return []
        metric = parse_metric(line, written_at)
        if metric is None or not (metric.values or metric.params or metric.refused):
            self._malformed += 1
            text = line.strip()[:_QUOTED_BYTES].decode(errors="replace")
            self._left_out.setdefault(
                "malformed_metric",
                "Lines of the metrics file that are not a JSON object with numbers are left out; the first is "
                f"{text!r}.",
            )
            return []
        if metric.refused:
            names = [f"{name} ({kind})" for name, kind in metric.refused.items()]
            self._left_out.add(
                "metric_no_number", "Values of the metrics file that are not numbers are left out", names
            )
        rows = self._rows.params_row(metric.params) if metric.params else []
        if metric.values:
            rows += self._rows.add(FILE_STREAM, self._earlier + self._offset, metric.step, metric.at, metric.values)
        return rows

    def _report_long_line(self) -> None:
        self._left_out.setdefault(
            "metric_line_limit",
            f"Lines of the metrics file over {MAX_METRIC_LINE:,} bytes are left out; the first begins at byte "
            f"{self._offset:,}. Write fewer values per line.",
        )


def _read_count(file: Path) -> int:
    try:
        return int(file.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return 0
