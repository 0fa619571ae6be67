"""The rows of metrics that are stored of an attempt: limits of names and values, and what they leave out."""

import math
import threading
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from core.jobs.tracking.metric_limits import MAX_NAME, MetricLimits
from core.jobs.tracking.metrics import (
    FILE_STREAM,
    LOG_STREAM,
    STREAM_BYTES,
    Removal,
    StoredSummary,
)
from worker.attempt.outputs.metric_lines import storable_name

_MOST_REMEMBERED = 10_000
_LISTED_CHARACTERS = 1000
_THINNING_STEPS = 64


class Omissions(dict[str, str]):
    """Parts of an attempt's metrics that are left out: by reason, a sentence."""

    def __init__(self) -> None:
        super().__init__()
        self._reported: dict[str, int] = {}
        self._names: dict[str, dict[str, None]] = {}

    def add(self, reason: str, text: str, names: Iterable[str]) -> None:
        """Tell at once that these are left out; further ones are told at the end."""
        remembered = self._names.setdefault(reason, {})
        for name in names:
            if len(remembered) < _MOST_REMEMBERED:
                remembered.setdefault(name)
        if reason not in self:
            self[reason] = f"{text}: {_list(list(remembered))}."
            self._reported[reason] = len(remembered)

    def finish(self) -> None:
        for reason, names in self._names.items():
            if len(names) > self._reported[reason]:
                text = self[reason].partition(": ")[0]
                self[f"{reason}_all"] = f"In all {len(names):,}. {text}: {_list(list(names))}."


def _list(names: list[str]) -> str:
    shown, length = 0, 0
    for name in names:
        length += len(name) + 2
        if shown and length > _LISTED_CHARACTERS:
            break
        shown += 1
    more = len(names) - shown
    return ", ".join(names[:shown]) + (f" and {more:,} more" if more else "")


class MetricRows:
    """Makes the rows of an attempt's metrics from all that it writes them to; for several threads.

    Over half of the limit of values, lines are taken in groups: of each metric the lowest and the highest value of a
    group are stored, and at the end the last. Groups grow with each further sixty-fourth of the limit. A metric that
    several sources have is taken from the best of them: the metrics file, else the log, else event files.
    """

    def __init__(self, job_id: str, attempt: int, limits: MetricLimits, stored: StoredSummary) -> None:
        self._key = {"job_id": job_id, "attempt": attempt, "source": "job"}
        self._limits = limits
        self._values = stored.values
        # One string object for each name, shared by all rows.
        self._names = {name: name for name in sorted(stored.names)}
        self._sources = {name: _source(stream) for name, stream in stored.streams.items()}
        self._group: dict[str, list[dict[str, Any]]] = {}
        self._lines = 0
        self._lock = threading.Lock()
        self.left_out = Omissions()

    def add(
        self, stream: int, offset: int, step: float | None, at: datetime, given: Mapping[str, float]
    ) -> list[dict[str, Any]]:
        """Take a line or an event; return the rows that are to be stored now."""
        with self._lock:
            values = self._limit_names(self._with_storable_names(given))
            rows = self._remove_from_worse(_source(stream), values)
            if values := {name: value for name, value in values.items() if self._sources[name] == _source(stream)}:
                position = stream * STREAM_BYTES + offset
                rows += self._thin(self._key | {"offset": position, "step": step, "at": at, "values": values})
            return rows

    def params_row(self, params: dict[str, Any]) -> list[dict[str, Any]]:
        return [self._key | {"source": "params", "values": params}]

    def remove(self, streams: Iterable[int], from_step: float) -> list[dict[str, Any]]:
        """Return the removal of the values of these event files from a step on."""
        with self._lock:
            rows = self._close_group(at_end=False)
            return rows + [self._removal(stream, stream + 1, from_step=from_step) for stream in streams]

    def finish(self) -> list[dict[str, Any]]:
        """Return the last rows, and tell what was left out."""
        with self._lock:
            self.left_out.finish()
            return self._close_group(at_end=True)

    def _with_storable_names(self, given: Mapping[str, float]) -> dict[str, float]:
        if given.keys() <= self._names.keys():
            return dict(given)
        values = {storable_name(name): value for name, value in given.items()}
        if changed := values.keys() - given.keys():
            text = (
                f"Metric names that are longer than {MAX_NAME} characters or have unprintable characters are stored as"
            )
            self.left_out.add("metric_names_changed", text, (name for name in values if name in changed))
        return values

    def _limit_names(self, given: dict[str, float]) -> dict[str, float]:
        """Return the values whose names are within the limit on names; the first names seen are kept."""
        for name in given:
            if name not in self._names and len(self._names) < self._limits.names:
                self._names[name] = name
        if beyond := [name for name in given if name not in self._names]:
            text = f"A job can have at most {self._limits.names:,} metrics; further names are left out"
            self.left_out.add("metric_names_limit", text, beyond)
        return {self._names[name]: value for name, value in given.items() if name in self._names}

    def _remove_from_worse(self, source: int, values: dict[str, float]) -> list[dict[str, Any]]:
        """Note which source metrics are taken from; return the removal of their values of a worse one."""
        rows = []
        for name in values:
            if self._sources.setdefault(name, source) < source:
                self._sources[name] = source
                self._group.pop(name, None)
                rows.append(self._removal(0, source, name=name))
        return rows

    def _removal(self, first: int, end: int, **which: Any) -> dict[str, Any]:  # noqa: ANN401 - the fields of Removal
        removal = Removal(first * STREAM_BYTES, end * STREAM_BYTES, **which)
        return self._key | {"source": "removal", "values": {}, "removal": removal}

    def _thin(self, row: dict[str, Any]) -> list[dict[str, Any]]:
        over = self._values - self._limits.values // 2
        if over < 0:
            self._values += len(row["values"])
            return [row]
        self.left_out.setdefault(
            "metric_values_limit",
            f"The job wrote more than {self._limits.values // 2:,} metric values. Of the later ones, only "
            "the lowest and highest of several lines and the last value are stored, at most "
            f"{self._limits.values:,} in total.",
        )
        self._lines += 1
        for name, value in row["values"].items():
            kept = self._group.setdefault(name, [row, row, row])
            low, high = kept[0]["values"][name], kept[1]["values"][name]
            kept[:] = [
                row if value < low or math.isnan(low) else kept[0],
                row if value > high or math.isnan(high) else kept[1],
                row,
            ]
        return (
            self._close_group(at_end=False) if self._lines >= 4 << over * _THINNING_STEPS // self._limits.values else []
        )

    def _close_group(self, *, at_end: bool) -> list[dict[str, Any]]:
        rows: dict[int, dict[str, Any]] = {}
        for name, kept in self._group.items():
            for row in kept if at_end else kept[:2]:
                stored = rows.setdefault(row["offset"], row | {"values": {}})
                stored["values"][name] = row["values"][name]
        self._group, self._lines = {}, 0
        self._values += sum(len(row["values"]) for row in rows.values())
        return [rows[offset] for offset in sorted(rows)]


def _source(stream: int) -> int:
    return stream if stream in {LOG_STREAM, FILE_STREAM} else 0
