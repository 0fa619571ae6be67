import json
import math
from array import array
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import groupby
from operator import itemgetter
from typing import Any, Literal, NamedTuple

from sqlalchemy import ColumnElement, Text, delete, exists, func, literal, or_, select, tuple_, type_coerce
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from core.db.database import Database
from core.db.models.jobs import Event, Job
from core.db.models.metrics import LastMetric, Metric, with_numbers
from core.jobs.guarded_updates import add_event, insert_ignore

EVENT = "metrics"  # kind of the event that records that metric values were dropped
STREAM_BYTES = 2**40
"""An offset of a row that a job wrote is that in its source, plus so much for each source before it."""
MAX_EVENT_FILES = 200
EVENT_FILES_STREAM, LOG_STREAM, FILE_STREAM = 0, MAX_EVENT_FILES, MAX_EVENT_FILES + 1
"""Sources, the best last: the first of TensorBoard's event files, followed by the others; the log; the metrics file."""
MAX_SERIES = 1000  # most series in one response
MAX_TIME = 2**33
"""Latest Unix time of a value, in seconds: in the year 2242. One near year 9999 leaves the calendar in other zones."""
_MIN_ROWS = 500
_SAMPLES = 16
_FETCH_SIZE = 500
_MOST_NOTES = 20  # for a reason
DELETE_BATCH = 5000


@dataclass(slots=True)
class Series:
    name: str
    source: str
    points: list[tuple[float | None, float, float]] = field(default_factory=list)
    """(step, unix time in seconds, value)"""


class RowCount(NamedTuple):
    """Number of metric rows of an attempt from one source, and the offset of the last one."""

    source: str
    attempt: int
    rows: int
    last: int


class XRange(NamedTuple):
    """A range of a chart's horizontal axis, both ends included: steps, or Unix times in seconds.

    A range of steps includes all rows that have no step, such as those of the system.
    """

    axis: Literal["step", "time"]
    start: float
    stop: float

    def condition(self) -> ColumnElement[bool]:
        if self.axis == "step":
            return or_(Metric.step.between(self.start, self.stop), Metric.step.is_(None))
        return Metric.at.between(datetime.fromtimestamp(self.start, UTC), datetime.fromtimestamp(self.stop, UTC))


@dataclass(slots=True)
class StoredSummary:
    offsets: dict[int, int] = field(default_factory=dict)  # offset of the attempt's last stored line, by source
    values: int = 0
    names: set[str] = field(default_factory=set)
    streams: dict[str, int] = field(default_factory=dict)  # the best source of each of the attempt's metrics


class Removal(NamedTuple):
    """Values of an attempt to remove: those at offsets from `start` to before `end`, of a metric or from a step on."""

    start: int
    end: int
    name: str | None = None
    from_step: float = -math.inf


def write(session: Session, rows: Iterable[dict[str, Any]]) -> None:
    """Store rows of metrics, and remove values where a row is a removal, in their order."""
    for is_removal, some in groupby(rows, key=lambda row: row["source"] == "removal"):
        if is_removal:
            for row in some:
                _remove(session, row["job_id"], row["attempt"], row["removal"])
        else:
            add(session, list(some))


def _remove(session: Session, job_id: str, attempt: int, removal: Removal) -> None:
    conditions = [
        *(Metric.job_id == job_id, Metric.attempt == attempt, Metric.source == "job"),
        *(Metric.offset >= removal.start, Metric.offset < removal.end),
    ]
    if removal.name is None:
        conditions.append(Metric.step >= removal.from_step)
    else:
        conditions.append(has_metric(removal.name))
    names: set[str] = set()
    for row in session.scalars(select(Metric).where(*conditions)):
        removed = row.values.keys() if removal.name is None else {removal.name}
        names |= removed
        if left := {name: value for name, value in row.values.items() if name not in removed}:
            row.values = left
        else:
            session.delete(row)
    session.flush()
    _restore_last(session, job_id, names)


def _restore_last(session: Session, job_id: str, names: Collection[str]) -> None:
    """Give metrics the last values that are still stored."""
    session.execute(delete(LastMetric).where(LastMetric.job_id == job_id, LastMetric.name.in_(names)))
    rows = select(Metric.values).where(Metric.job_id == job_id, Metric.source == "job")
    for name in names:
        last = rows.where(has_metric(name)).order_by(Metric.attempt.desc(), Metric.offset.desc()).limit(1)
        if (values := session.scalar(last)) is not None:
            session.add(LastMetric(job_id=job_id, name=name, value=_storable(values[name])))
    session.flush()


def add(session: Session, rows: Sequence[dict[str, Any]]) -> None:
    """Store rows of metrics; rows that exist already (a repeat after a crash) are left as they are."""
    if rows:
        session.execute(insert_ignore(session.get_bind().dialect.name, Metric), rows)
    last = {
        (row["job_id"], name): value for row in rows if row["source"] == "job" for name, value in row["values"].items()
    }
    if last:
        values = [{"job_id": job_id, "name": name, "value": _storable(value)} for (job_id, name), value in last.items()]
        session.execute(_upsert_last(session.get_bind().dialect.name), values)


def _storable(value: float) -> float | None:
    return None if math.isnan(value) else value


def _upsert_last(dialect: str) -> Any:  # noqa: ANN401 - the two dialects share no class
    statement = (postgresql if dialect == "postgresql" else sqlite).insert(LastMetric)
    return statement.on_conflict_do_update(index_elements=["job_id", "name"], set_={"value": statement.excluded.value})


def last_values(session: Session, jobs: Iterable[str]) -> dict[str, dict[str, float]]:
    values: dict[str, dict[str, float]] = {}
    wanted = select(LastMetric).where(LastMetric.job_id.in_(list(jobs))).order_by(LastMetric.name)
    for row in session.scalars(wanted):
        values.setdefault(row.job_id, {})[row.name] = math.nan if row.value is None else row.value
    return values


def last_system_samples(session: Session, job_ids: Collection[str]) -> dict[str, dict[str, float]]:
    """Return the last sample of the usage of each job's machine by its current attempt; empty: none yet."""
    samples = select(Metric.values).where(
        Metric.job_id == Job.id, Metric.attempt == Job.attempt, Metric.source == "system"
    )
    last = samples.order_by(Metric.offset.desc()).limit(1).correlate(Job).scalar_subquery()
    query = select(Job.id, last).where(Job.id.in_(job_ids))
    return {job_id: values or {} for job_id, values in session.execute(query)}


def record_limit(session: Session, job: Job, reason: str, detail: str) -> None:
    """Record in the job's events that values are dropped, and by which limit."""
    recorded = select(Event.detail).where(Event.job_id == job.id, Event.kind == EVENT, Event.reason == reason)
    details = session.scalars(recorded.limit(_MOST_NOTES)).all()
    if len(details) < _MOST_NOTES and detail not in details:
        add_event(session, job, EVENT, reason=reason, detail=detail)


def limit_messages(session: Session, job_id: str) -> list[str]:
    query = select(Event.detail).where(Event.job_id == job_id, Event.kind == EVENT).order_by(Event.id)
    return [detail for detail in session.scalars(query) if detail]


def summarize_stored(
    session: Session,
    job_id: str,
    attempt: int,
    read: Callable[[int, float | None, dict[str, float]], None] | None = None,
) -> StoredSummary:
    """Summarize what a job wrote; `read` gets offsets, steps and values of the attempt, in their order."""
    summary = StoredSummary()
    columns = Metric.attempt, Metric.offset, Metric.step, Metric.values
    query = select(*columns).where(Metric.job_id == job_id, Metric.source == "job").order_by(*columns[:2])
    for number, offset, step, values in session.execute(query.execution_options(yield_per=_FETCH_SIZE)):
        summary.values += len(values)
        summary.names.update(values)
        if number == attempt:
            stream, offset_in_stream = divmod(offset, STREAM_BYTES)
            summary.offsets[stream] = max(summary.offsets.get(stream, 0), offset_in_stream)
            for name in values:
                summary.streams[name] = max(summary.streams.get(name, 0), stream)
            if read is not None:
                read(offset, step, values)
    return summary


def count_rows(
    session: Session, job_id: str, within: XRange | None = None, attempt: int | None = None
) -> list[RowCount]:
    """Count the rows by source and attempt, or those of one; without a range, from the primary key's index alone."""
    query = (
        select(Metric.source, Metric.attempt, func.count(), func.max(Metric.offset))
        .where(*_owned(job_id, within, attempt))
        .group_by(Metric.source, Metric.attempt)
        .order_by(Metric.source, Metric.attempt)
    )
    return [RowCount(*row) for row in session.execute(query)]


class OwnCount(NamedTuple):
    rows: int = 0
    names: int = 0


def count_own_rows(session: Session, jobs: Iterable[str]) -> dict[str, OwnCount]:
    """Count the rows that each of some jobs wrote itself, and its metrics."""
    ids = list(jobs)
    rows = select(Metric.job_id, func.count()).where(Metric.job_id.in_(ids), Metric.source == "job")
    names = select(LastMetric.job_id, func.count()).where(LastMetric.job_id.in_(ids)).group_by(LastMetric.job_id)
    by_job = {job_id: count for job_id, count in session.execute(names)}  # noqa: C416 - a result is no iterable for dict()
    counts = session.execute(rows.group_by(Metric.job_id))
    return {job_id: OwnCount(count, by_job.get(job_id, 0)) for job_id, count in counts}


class OwnRows(NamedTuple):
    """Rows that a job wrote itself, in columns."""

    steps: Sequence[float | None]
    times: Sequence[datetime]  # empty: not read
    values: Sequence[dict[str, float]]
    sampled: bool  # true if rows were left out at even intervals, because there are too many values


def read_own_rows(session: Session, job_id: str, count: OwnCount, *, most_values: int, with_times: bool) -> OwnRows:
    """Read the rows that a job wrote itself, which were counted, faster than by objects of each."""
    owned = [Metric.job_id == job_id, Metric.source == "job"]
    if count.rows * count.names > most_values and (stride := _stride(session, owned, count.rows, most_values)) > 1:
        rows = _sampled_rows(session, owned, count.rows, stride, _find_extremes(session, owned, None))
        steps, times, values = zip(*rows, strict=True)
        return OwnRows(steps, times, values, sampled=True)
    columns: list[Any] = [Metric.step, type_coerce(Metric.values, Text), *([Metric.at] if with_times else [])]
    stored = session.execute(select(*columns).where(*owned).order_by(Metric.attempt, Metric.offset)).all()
    texts: list[Any] = [row[1] for row in stored]
    # PostgreSQL's driver has parsed them already.
    parsed = json.loads(f"[{','.join(texts)}]") if texts and isinstance(texts[0], str) else texts
    parsed = [with_numbers(values) for values in parsed]
    return OwnRows([row[0] for row in stored], [row[2] for row in stored] if with_times else [], parsed, sampled=False)


def read(  # noqa: PLR0913 - what to read, of which rows, and how much
    session: Session,
    job_id: str,
    extents: Iterable[RowCount],  # its `count_rows`, of the sources to be read
    *,
    most_values: int,
    name: str | None = None,  # only this metric
    within: XRange | None = None,  # only rows in this range, which `extents` counts
    attempt: int | None = None,  # only rows of this attempt, which `extents` counts
    with_extremes: bool = False,
) -> "SeriesColumns":
    """Read a job's metrics as series, each in the order in which it was written.

    Samples evenly spaced rows when there are too many; always includes the last, and `with_extremes` the lowest and
    highest of each metric, which takes a look at all. With a name, these are rows with that metric: one that few rows
    have, such as one of each epoch, is not lost among the others.
    """
    rows: dict[str, int] = {}
    for extent in extents:
        rows[extent.source] = rows.get(extent.source, 0) + extent.rows
    columns = SeriesColumns()
    for source, count in rows.items():
        owned = [*_owned(job_id, within, attempt), Metric.source == source]
        number, stride = count, _stride(session, owned, count, most_values)
        if name is not None and stride > 1:
            owned.append(has_metric(name))
            number = session.scalar(select(func.count()).select_from(Metric).where(*owned)) or 0
            stride = _stride(session, owned, number, most_values)
        columns.sampled = columns.sampled or stride > 1
        extremes = _find_extremes(session, owned, name) if with_extremes and stride > 1 else set()
        for step, at, values in _sampled_rows(session, owned, number, stride, extremes):
            columns.add(source, step, at.timestamp(), values if name is None else _value_of(values, name))
    return columns


class SeriesColumns:
    """Series stored by column: a value takes about 16 bytes, a point in a list 130.

    Iteration builds the points of one series at a time.
    """

    def __init__(self) -> None:
        self._steps: list[float | None] = []
        self._times: list[float] = []
        self._read: dict[tuple[str, str], tuple[array[int], array[float]]] = {}
        self.full = False  # true if series were dropped because there are more than MAX_SERIES
        self.sampled = False  # true if rows were left out because there are too many values

    def __len__(self) -> int:
        return len(self._read)

    def __iter__(self) -> Iterator[Series]:
        for (source, name), (places, values) in self._read.items():
            yield Series(name, source, [self._point(*point) for point in zip(places, values, strict=True)])

    def add(self, source: str, step: float | None, time: float, values: dict[str, float]) -> None:
        index = len(self._steps)
        self._steps.append(step)
        self._times.append(time)
        for name, value in values.items():
            key = (source, name)
            if key not in self._read:
                if len(self._read) >= MAX_SERIES:
                    self.full = True
                    continue
                self._read[key] = (array("l"), array("d"))
            places, numbers = self._read[key]
            places.append(index)
            numbers.append(value)

    def _point(self, index: int, value: float) -> tuple[float | None, float, float]:
        return self._steps[index], self._times[index], value


def _value_of(values: dict[str, float], name: str) -> dict[str, float]:
    return {name: values[name]} if name in values else {}


def _owned(job_id: str, within: XRange | None, attempt: int | None) -> list[ColumnElement[bool]]:
    conditions = [Metric.job_id == job_id]
    if within is not None:
        conditions.append(within.condition())
    if attempt is not None:
        conditions.append(Metric.attempt == attempt)
    return conditions


def has_metric(name: str) -> ColumnElement[bool]:
    values = func.json_each(Metric.values).table_valued("key")
    return exists(select(literal(1)).select_from(values).where(values.c.key == name))


def _stride(session: Session, owned: Sequence[ColumnElement[bool]], rows: int, most_values: int) -> int:
    """Return the sampling stride for about `most_values` values; the values per row are estimated from a few rows."""
    if rows <= _MIN_ROWS:
        return 1
    sampled = _sampled_rows(session, owned, rows, max(1, rows // _SAMPLES))
    width = max(len(values) for *_, values in sampled)
    return max(1, -(-rows // max(_MIN_ROWS, most_values // max(1, width))))


def _find_extremes(session: Session, owned: Sequence[ColumnElement[bool]], name: str | None) -> set[tuple[int, int]]:
    """Return the attempt and offset of each metric's lowest and highest finite value."""
    extremes: dict[str, list[tuple[float, tuple[int, int]]]] = {}
    query = select(Metric.attempt, Metric.offset, Metric.values).where(*owned).order_by(Metric.attempt, Metric.offset)
    for attempt, offset, values in session.execute(query.execution_options(yield_per=_FETCH_SIZE)):
        for metric, value in (values if name is None else _value_of(values, name)).items():
            low, high = ends = extremes.setdefault(metric, [_NO_LOW, _NO_HIGH])
            if value < low[0] and value != -math.inf:
                ends[0] = (value, (attempt, offset))
            if value > high[0] and value != math.inf:
                ends[1] = (value, (attempt, offset))
    return {key for ends in extremes.values() for value, key in ends if math.isfinite(value)}


_NO_LOW, _NO_HIGH = (math.inf, (0, 0)), (-math.inf, (0, 0))


def _sampled_rows(
    session: Session,
    owned: Sequence[ColumnElement[bool]],
    rows: int,
    stride: int,
    also: Collection[tuple[int, int]] = (),  # attempts and offsets of other rows
) -> Iterator[Any]:
    """Yield every `stride`-th of the rows as (step, at, values), in order; always the first and the last."""
    query = select(Metric.step, Metric.at, Metric.values).where(*owned).order_by(Metric.attempt, Metric.offset)
    if stride == 1:
        yield from session.execute(query.execution_options(yield_per=_FETCH_SIZE))
        return
    # Row numbers come from the key's index alone, so other rows are not read. No join: without statistics
    # PostgreSQL compares each chosen key with each row.
    order = (Metric.attempt, Metric.offset)
    keys = select(*order, func.row_number().over(order_by=order).label("number")).where(*owned).subquery()
    chosen = select(keys.c.attempt, keys.c.offset).where(or_(keys.c.number % stride == 1, keys.c.number == rows))
    row_keys = sorted({*map(tuple, session.execute(chosen)), *also})
    for attempt, of_attempt in groupby(row_keys, key=itemgetter(0)):
        offsets = [offset for _, offset in of_attempt]
        for start in range(0, len(offsets), _FETCH_SIZE):
            some = Metric.offset.in_(offsets[start : start + _FETCH_SIZE])
            yield from session.execute(query.where(Metric.attempt == attempt, some))


def last_rows(session: Session, job_id: str, count: int) -> list[tuple[float | None, datetime, dict[str, float]]]:
    """Return the last rows that a job wrote itself, oldest first, as (step, time, values)."""
    query = (
        select(Metric.step, Metric.at, Metric.values)
        .where(Metric.job_id == job_id, Metric.source == "job")
        .order_by(Metric.attempt.desc(), Metric.offset.desc())
        .limit(count)
    )
    return [(step, at, values) for step, at, values in reversed(session.execute(query).all())]


class StoredRow(NamedTuple):
    attempt: int
    source: str
    offset: int
    step: float | None
    at: datetime
    values: dict[str, float]


def read_page(
    session: Session, job_id: str, after: tuple[int, str, int], *, name: str | None, most_values: int
) -> list[StoredRow]:
    """Return rows after one with this attempt, source and offset, until they have so many values; fewer at the end."""
    key = (Metric.attempt, Metric.source, Metric.offset)
    query = select(*key, Metric.step, Metric.at, Metric.values).where(Metric.job_id == job_id, tuple_(*key) > after)
    rows: list[StoredRow] = []
    count = 0
    for values in session.execute(query.order_by(*key).execution_options(yield_per=_FETCH_SIZE)):
        row = StoredRow(*values)
        rows.append(row if name is None else row._replace(values=_value_of(row.values, name)))
        count += max(1, len(rows[-1].values))
        if count >= most_values:
            break
    return rows


def remove(database: Database, job_id: str) -> None:
    with database.write() as session:
        session.execute(delete(LastMetric).where(LastMetric.job_id == job_id))
    key = tuple_(Metric.attempt, Metric.source, Metric.offset)
    some = select(Metric.attempt, Metric.source, Metric.offset).where(Metric.job_id == job_id).limit(DELETE_BATCH)
    statement = delete(Metric).where(Metric.job_id == job_id, key.in_(some))
    while True:
        with database.write() as session:
            if not session.execute(statement, execution_options={"synchronize_session": False}).rowcount:  # type: ignore[attr-defined]  # a result of DML has it
                return
