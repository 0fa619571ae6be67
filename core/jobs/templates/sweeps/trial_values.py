"""The values of a sweep's metric that its trials log."""

from itertools import groupby
from typing import Any, NamedTuple

from sqlalchemy import and_, select, tuple_
from sqlalchemy.orm import Session

from core.db.models.metrics import Metric
from core.db.models.sweeps import SweepTrial
from core.jobs.tracking.metrics import LOG_STREAM, STREAM_BYTES, has_metric

_MOST_READ = 5000  # most values of a file that one round reads


class NewValue(NamedTuple):
    step: float | None
    value: float | None  # None: not finite, too
    repeated: bool = False  # an earlier attempt has come to this step already


def read_new(session: Session, trial: SweepTrial, metric: str) -> tuple[list[NewValue], bool]:
    """Return the values that a trial has logged since those read before, as they were written, and if there are more.

    A metric that the program logs is read from its metrics file and its log, and not from event files beside them.
    """
    rows, more = _unread(session, trial, metric)
    values: list[NewValue] = []
    for attempt, group in groupby(_as_written(rows), key=lambda row: row.attempt):
        new = list(group)
        if attempt != trial.read_attempt:
            trial.read_attempt, trial.read_offsets = attempt, []
        read = {offset // STREAM_BYTES: offset for offset in (*trial.read_offsets, *sorted(row.offset for row in new))}
        trial.read_offsets = sorted(read.values())
        if max(read) >= LOG_STREAM:
            new = [row for row in new if row.offset // STREAM_BYTES >= LOG_STREAM]
        passed = _last_step(session, trial, metric) if attempt > 1 else None
        values += [
            NewValue(row.step, row.values[metric], None not in (passed, row.step) and row.step <= passed) for row in new
        ]
    return values, more


def _unread(session: Session, trial: SweepTrial, metric: str) -> tuple[list[Any], bool]:
    query = (
        select(Metric.attempt, Metric.offset, Metric.at, Metric.step, Metric.values)
        .where(Metric.job_id == trial.job_id, Metric.source == "job", has_metric(metric))
        .order_by(Metric.attempt, Metric.offset)
        .limit(_MOST_READ)
    )
    starts = [0, *(offset + 1 for offset in trial.read_offsets)]
    ends = [offset - offset % STREAM_BYTES for offset in trial.read_offsets]
    ranges = [
        and_(Metric.attempt == trial.read_attempt, Metric.offset >= start, Metric.offset < end)
        for start, end in zip(starts, ends, strict=False)
        if start < end
    ]
    after = tuple_(Metric.attempt, Metric.offset) >= tuple_(trial.read_attempt, starts[-1])
    read = [session.execute(query.where(places)).all() for places in (*ranges, after)]
    return [row for rows in read for row in rows], any(len(rows) == _MOST_READ for rows in read)


def _as_written(rows: list[Any]) -> list[Any]:
    """Sort rows: those of a file as they stand there, whatever times they name; those of several by their times."""
    latest: dict[tuple[int, int], Any] = {}

    def order(row: Any) -> Any:  # noqa: ANN401 - a row
        file = (row.attempt, row.offset // STREAM_BYTES)
        latest[file] = max(latest.get(file, row.at), row.at)
        return row.attempt, latest[file], row.offset

    return sorted(rows, key=order)


def _last_step(session: Session, trial: SweepTrial, metric: str) -> float | None:
    """Return the last step of the attempts before the one that is read."""
    before = select(Metric.step).where(
        Metric.job_id == trial.job_id, Metric.source == "job", Metric.attempt < trial.read_attempt, has_metric(metric)
    )
    return session.scalar(before.order_by(Metric.attempt.desc(), Metric.offset.desc()).limit(1))
