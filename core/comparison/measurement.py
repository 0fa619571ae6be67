"""Measurements of one run, from the metrics that its program wrote and the times of its attempts."""

import re
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import datetime, timedelta
from itertools import groupby, pairwise
from math import ceil, isfinite
from operator import itemgetter
from statistics import median, quantiles
from typing import Generic, Literal, TypeVar

from cachetools import LRUCache
from sqlalchemy import Float, Subquery, case, cast, func, null, select
from sqlalchemy.orm import Session

from core.db.models.jobs import Attempt, Job
from core.db.models.metrics import NOT_FINITE, Metric
from core.errors import SpecInvalid
from core.jobs import queries
from core.jobs.tracking import metrics

Goal = Literal["max", "min"]  # direction in which a metric improves
Point = tuple[float | None, float, float | None]
"""Step, unix time in seconds, and value of a metric; None: not read."""

_LOW_IS_GOOD = re.compile(r"loss|err|perplexity|ppl|mse|mae|rmse|seconds|time|latency|cost|memory", re.IGNORECASE)
_HIGH_IS_GOOD = re.compile(
    r"acc|auc|f1|score|precision|recall|iou|dice|bleu|rouge|psnr|ssim|r2|reward|return", re.IGNORECASE
)
_MIN_INTERVALS = 3
_FINAL_SHARE = 0.2


@dataclass(frozen=True, slots=True)
class Spread:
    """A figure of several jobs, or of the intervals of one: the median, and the least and the largest or quartiles."""

    median: float
    low: float
    high: float
    seconds: float | None = field(default=None, compare=False)  # of one job's pace: the time of its intervals


@dataclass(frozen=True, slots=True)
class Arrival:
    """The first report at which a metric had reached its target."""

    seconds: float
    step: float | None


def measure_pace(points: Iterable[Point]) -> Spread | None:
    """Measure the pace between consecutive reports of one metric.

    Left out are the first interval, of compilation and the filling of caches, if three others remain, and those in
    which the step does not rise, as after a restart from a checkpoint. Of reports with the same time, such as lines
    that gave none and were read together, the last counts. `points`: reports in the order of writing.
    """
    same_time = groupby(((step, at) for step, at, _ in points if step is not None), key=itemgetter(1))
    reports = [list(group)[-1] for _, group in same_time]
    intervals = [
        (step - before, at - earlier)
        for (before, earlier), (step, at) in pairwise(reports)
        if step > before and at > earlier
    ]
    rates = [steps / seconds for steps, seconds in intervals]
    if len(rates) > _MIN_INTERVALS:
        rates = rates[1:]
    if not rates:
        return None
    low, _, high = quantiles(rates, n=4, method="inclusive") if rates[1:] else (rates[0],) * 3
    return Spread(median(rates), low, high, sum(seconds for _, seconds in intervals))


def running_seconds(at: float, runs: Sequence[tuple[float, float]]) -> float:
    """Return the running time until a moment, without the pauses between attempts."""
    return sum(max(0.0, min(end, at) - start) for start, end in runs)


def learning_curve(points: Iterable[Point], runs: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the finite values of a metric by running time in seconds."""
    return [(running_seconds(at, runs), value) for _, at, value in points if value is not None and isfinite(value)]


def expected_goal(name: str) -> Goal:
    """Return the direction in which a metric improves, up if its name does not tell."""
    return named_goal(name) or "max"


def named_goal(name: str) -> Goal | None:
    """Return the direction in which a metric improves; None if its name does not tell."""
    if _LOW_IS_GOOD.search(name):
        return "min"
    return "max" if _HIGH_IS_GOOD.search(name) else None


def parse_metric(text: str, goal: Goal | None) -> tuple[str, Goal]:
    """Split `val_loss:min`; without a direction, `goal` counts, or else the metric's name.

    Raises `SpecInvalid`: the two directions differ.
    """
    name, _, direction = text.rpartition(":")
    if not name or direction not in ("min", "max"):
        return text, goal or expected_goal(text)
    given: Goal = "min" if direction == "min" else "max"
    if goal not in (None, given):
        raise SpecInvalid(f"metric says {given} but goal says {goal}. Leave one of them out.", field="goal")
    return name, given


def final_value(session: Session, job_id: str, name: str) -> float | None:
    """Return the median of the last fifth of a job's reports of a metric, at least of the last one.

    Unlike the best of all, it is not higher by chance in a run that evaluates more often.
    """
    reports = _reports(session, job_id, name)
    count = session.scalar(select(func.count()).select_from(reports)) or 0
    last = select(reports.c.value).order_by(reports.c.attempt.desc(), reports.c.offset.desc())
    values = session.scalars(last.limit(ceil(count * _FINAL_SHARE)))
    return median(finite) if (finite := [value for value in values if value is not None]) else None


def find_arrival(
    session: Session, job_id: str, name: str, goal: Goal, target: float, runs: Sequence[tuple[float, float]]
) -> Arrival | None:
    """Find the first report at which the target was reached.

    `runs`: start and end of each attempt's command, unix times in seconds; the last end may be now.
    """
    reports = _reports(session, job_id, name)
    reached = reports.c.value >= target if goal == "max" else reports.c.value <= target
    query = select(reports.c.step, reports.c.at).where(reached).order_by(reports.c.attempt, reports.c.offset)
    first = session.execute(query.limit(1)).first()
    return Arrival(running_seconds(first.at.timestamp(), runs), first.step) if first else None


def _reports(session: Session, job_id: str, name: str) -> Subquery:
    each_pair = func.json_each_text if session.get_bind().dialect.name == "postgresql" else func.json_each
    pair = each_pair(Metric.values).table_valued("key", "value")
    finite = case((pair.c.value.in_(NOT_FINITE), null()), else_=cast(pair.c.value, Float))
    return (
        select(Metric.attempt, Metric.offset, Metric.step, Metric.at, finite.label("value"))
        .join(pair, pair.c.key == name)
        .where(Metric.job_id == job_id, Metric.source == "job")
        .subquery()
    )


READ_VALUES = 50_000
_LAST_ROWS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFigures:
    """The measured figures of a run; None: not measured. Names of metrics are those of docs/metrics.md."""

    seconds: float = 0.0
    steps_per_second: float | None = None
    stepping_seconds: float | None = None  # from the first report of a step to the last
    input_wait_share: float | None = None  # share of a step's time in which it waits for input, 0..1
    input_wait_share_error: float | None = None  # half the width of its 95 % interval
    communication_share: float | None = None  # share of a step's time in which replicas exchange gradients, 0..1
    startup_seconds: float | None = None
    compile_seconds: float | None = None
    flops_per_step: float | None = None
    bytes_per_step: float | None = None  # bytes moved to and from the device's memory, over all replicas
    replicas: float | None = None
    compute_bits: float | None = None  # bits of the numbers that it multiplies: 32, or 16 in mixed precision
    peak_device_bytes: float | None = None
    peak_host_bytes: float | None = None
    batch_size: float | None = None
    peak_learning_rate: float | None = None
    steps_per_epoch: float | None = None
    weight_decay: float | None = None
    # share of a sample's time in which a GPU worked, 0..1, as the driver counts it: the largest; None also for a run
    # that was never seen at work
    gpu_busy_share: float | None = None
    busy_cpus: float | None = None  # CPUs that its processes used in a sample, at the most
    cpu_limit: float | None = None  # CPUs that it may use; None: not limited
    gpu_memory_bytes: float | None = None  # most GPU memory that its processes had reserved, as the driver counts it
    memory_bytes: float | None = None

    @property
    def before_steps(self) -> float:
        """Seconds of starting and compiling, as far as measured, at most the running time."""
        return min(self.seconds, (self.startup_seconds or 0.0) + (self.compile_seconds or 0.0))


_SHARES = frozenset({"input_wait_share", "input_wait_share_error", "communication_share"})
_MAY_BE_ZERO = _SHARES | {"startup_seconds", "compile_seconds", "weight_decay"}
_MEASURED = frozenset(
    {
        *_MAY_BE_ZERO, "flops_per_step", "bytes_per_step", "replicas", "compute_bits", "peak_device_bytes",
        "peak_host_bytes", "batch_size", "peak_learning_rate", "steps_per_epoch",
    }
)  # fmt: skip
_WHOLE = frozenset({"replicas", "batch_size"})
_BITS = frozenset({8, 16, 32, 64})
_LARGEST = 1e30  # above every figure of a real run; sums and products of such values stay finite


def middle_figures(runs: Sequence[RunFigures]) -> RunFigures:
    values = {field.name: [getattr(run, field.name) for run in runs] for field in fields(RunFigures)}
    numbers = {name: [value for value in values if value is not None] for name, values in values.items()}
    return RunFigures(**{name: median(values) for name, values in numbers.items() if values})


def read_values(values: Mapping[str, float | None]) -> dict[str, float]:
    """Return the figures among a program's metrics, without values that such a figure cannot have."""
    return {
        name: value
        for name, value in values.items()
        if name in _MEASURED and value is not None and _may_be(name, value)
    }


def _may_be(name: str, value: float) -> bool:
    if name == "compute_bits":
        return value in _BITS
    if name in _WHOLE and not float(value).is_integer():
        return False
    return (0.0 if name in _MAY_BE_ZERO else 1 / _LARGEST) <= value <= (1.0 if name in _SHARES else _LARGEST)


def read_pace(session: Session, job: Job) -> Spread | None:
    """Return the pace, in steps a second, of the metric that a job reported most often, and the time of all reports."""
    columns = metrics.read(session, job.id, metrics.count_rows(session, job.id), most_values=READ_VALUES)
    job_columns = sorted(
        (column for column in columns if column.source == "job"), key=lambda column: -len(column.points)
    )
    pace_found = next((pace for column in job_columns if (pace := measure_pace(column.points)) is not None), None)
    reports = measure_pace(sorted((point for column in job_columns for point in column.points), key=itemgetter(1)))
    return replace(pace_found, seconds=reports.seconds) if pace_found and reports else pace_found


def run_times(attempts: Sequence[Attempt], current: datetime) -> list[tuple[float, float]]:
    """Return start and end of each attempt's command, in unix time; of one that runs, now."""
    return [
        (attempt.started_at.timestamp(), (attempt.ended_at or current).timestamp())
        for attempt in attempts
        if attempt.started_at is not None
    ]


def peak_usage(attempts: Sequence[Attempt], name: str) -> int | None:
    return max((value for attempt in attempts if (value := getattr(attempt, name)) is not None), default=None)


def other_cpus(attempts: Sequence[Attempt]) -> float | None:
    """Return how many CPUs of the last attempt's host other programs kept busy, on average; None: not measured."""
    percents = [(attempt.mean_host_cpu_percent, attempt.mean_cpu_percent) for attempt in attempts]
    host, job_percent = percents[-1] if percents else (None, None)
    return None if host is None or job_percent is None else max(0.0, host - job_percent) / 100


def build_figures(
    job: Job,
    attempts: Sequence[Attempt],
    current: datetime,
    pace: Spread | None,
    values: Mapping[str, float | None],
) -> RunFigures:
    """Build the figures from a job's attempts, its pace, and the last values of its metrics."""
    cpus = max((attempt.peak_cpu_percent or 0.0 for attempt in attempts), default=0.0)
    busy = max((attempt.peak_gpu_percent or 0.0 for attempt in attempts), default=0.0)
    return RunFigures(
        gpu_busy_share=busy / 100 or None,
        busy_cpus=cpus / 100 or None,
        cpu_limit=job.cpus,
        seconds=sum(end - start for start, end in run_times(attempts, current)),
        steps_per_second=pace.median if pace else None,
        stepping_seconds=pace.seconds if pace else None,
        gpu_memory_bytes=peak_usage(attempts, "peak_gpu_memory_bytes"),
        memory_bytes=peak_usage(attempts, "peak_memory_bytes"),
        **read_values(values),
    )


def last_values(session: Session, job_id: str) -> dict[str, float | None]:
    """Return the last value of each metric in the last lines that the job wrote."""
    return {
        name: value for _, _, values in metrics.last_rows(session, job_id, _LAST_ROWS) for name, value in values.items()
    }


def measure_run(session: Session, job: Job, current: datetime) -> RunFigures:
    pace = read_pace(session, job)
    return build_figures(job, queries.attempts(session, job.id), current, pace, last_values(session, job.id))


def measure_end(session: Session, job: Job, current: datetime) -> RunFigures:
    """Measure one job from the last lines that it wrote; much cheaper than `measure_run`."""
    rows = metrics.last_rows(session, job.id, _LAST_ROWS)
    pace = measure_pace([(step, at.timestamp(), None) for step, at, _ in rows])
    values = {name: value for _, _, values in rows for name, value in values.items()}
    return build_figures(job, queries.attempts(session, job.id), current, pace, values)


T = TypeVar("T")

_MOST = 512
_SETTLING = timedelta(minutes=1)  # time after a job's end in which nothing of it is cached, for what is stored late


class MeasurementCache(Generic[T]):
    """The measurements of the jobs that were asked for last; for any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._entries: LRUCache[tuple[object, ...], T] = LRUCache(_MOST)

    def get(self, job: Job, current: datetime, inputs: tuple[object, ...], measure: Callable[[], T]) -> T:
        """Return what `measure` returns for a job and these inputs, or returned before if the job has ended."""
        if not job.ended or job.finished_at is None or current - job.finished_at < _SETTLING:
            return measure()
        key = (job.id, job.attempt, job.finished_at, job.logs_removed_at, *inputs)
        with self._lock:
            if key in self._entries:
                return self._entries[key]
        measured = measure()
        with self._lock:
            self._entries[key] = measured
        return measured
