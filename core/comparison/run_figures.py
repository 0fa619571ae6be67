"""The figures of one run, by which it is judged and from which other machines are predicted."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from statistics import median

from sqlalchemy.orm import Session

from core.comparison.measurement import Pace, measure_pace
from core.db.models.jobs import Attempt, Job
from core.jobs import metrics, queries
from core.jobs.metrics import Series

_READ_VALUES = 50_000
_LAST_ROWS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFigures:
    """The measured figures of a run; None: not measured. Names of metrics are those of docs/metrics.md."""

    seconds: float = 0.0
    steps_per_second: float | None = None
    input_wait_share: float | None = None  # share of a step's time in which it waits for input, 0..1
    input_wait_share_error: float | None = None  # half the width of its 95 % interval
    communication_share: float | None = None  # share of a step's time in which replicas exchange gradients, 0..1
    startup_seconds: float | None = None
    compile_seconds: float | None = None
    flops_per_step: float | None = None
    bytes_per_step: float | None = None  # bytes moved to and from the device's memory, over all replicas
    replicas: float | None = None
    compute_bits: float | None = None  # bits of the numbers that it multiplies: 32, or 16 in mixed precision
    peak_flops_share: float | None = None  # share of the peak, if the program was given the peak
    peak_bandwidth_share: float | None = None  # share of the memory bandwidth, if the program was given that
    peak_device_bytes: float | None = None
    peak_host_bytes: float | None = None
    batch_size: float | None = None
    peak_learning_rate: float | None = None
    weight_decay: float | None = None
    # share of a sample's time in which a GPU worked, 0..1, as the driver counts it: the largest; None also for a run
    # that was never seen at work
    gpu_busy_share: float | None = None
    gpu_memory_bytes: float | None = None  # most GPU memory that its processes had reserved, as the driver counts it
    memory_bytes: float | None = None

    @property
    def before_steps(self) -> float:
        """Seconds of starting and compiling, as far as measured, at most the running time."""
        return min(self.seconds, (self.startup_seconds or 0.0) + (self.compile_seconds or 0.0))


_SHARES = frozenset(
    {"input_wait_share", "input_wait_share_error", "communication_share", "peak_flops_share", "peak_bandwidth_share"}
)
_MAY_BE_ZERO = _SHARES | {"startup_seconds", "compile_seconds", "weight_decay"}
_MEASURED = frozenset(
    {
        *_MAY_BE_ZERO, "flops_per_step", "bytes_per_step", "replicas", "compute_bits", "peak_device_bytes",
        "peak_host_bytes", "batch_size", "peak_learning_rate",
    }
)  # fmt: skip
_LARGEST = 1e30
"""Above every figure of a real run; sums and products of such values stay finite."""


def middle_figures(runs: Sequence[RunFigures]) -> RunFigures:
    values = {each.name: [getattr(run, each.name) for run in runs] for each in fields(RunFigures)}
    known = {name: [value for value in found if value is not None] for name, found in values.items()}
    return RunFigures(**{name: median(found) for name, found in known.items() if found})


def read_values(values: Mapping[str, float | None]) -> dict[str, float]:
    """Return the figures among a program's metrics, without values that such a figure cannot have."""
    found = {name: value for name, value in values.items() if name in _MEASURED and value is not None}
    return {
        name: value
        for name, value in found.items()
        if (0.0 if name in _MAY_BE_ZERO else 1 / _LARGEST) <= value <= (1.0 if name in _SHARES else _LARGEST)
    }


def find_pace(series: Iterable[Series]) -> Pace | None:
    """Return the pace of the metric that was reported most often."""
    paces = (measure_pace(each.points) for each in sorted(series, key=lambda each: -len(each.points)))
    return next((pace for pace in paces if pace is not None), None)


def run_times(attempts: Sequence[Attempt], current: datetime) -> list[tuple[float, float]]:
    """Return start and end of each attempt's command, in unix time; of one that runs, now."""
    return [
        (each.started_at.timestamp(), (each.ended_at or current).timestamp())
        for each in attempts
        if each.started_at is not None
    ]


def peak_usage(attempts: Sequence[Attempt], name: str) -> int | None:
    return max((value for each in attempts if (value := getattr(each, name)) is not None), default=None)


def other_cpus(attempts: Sequence[Attempt]) -> float | None:
    """Return how many CPUs of the last attempt's host other programs kept busy, on average; None: not measured."""
    found = [(one.mean_host_cpu_percent, one.mean_cpu_percent) for one in attempts]
    host, own = found[-1] if found else (None, None)
    return None if host is None or own is None else max(0.0, host - own) / 100


def build_figures(
    attempts: Sequence[Attempt], current: datetime, pace: Pace | None, values: Mapping[str, float | None]
) -> RunFigures:
    """Build the figures from a job's attempts, its pace, and the last values of its metrics."""
    busy = max((each.peak_gpu_percent or 0.0 for each in attempts), default=0.0)
    return RunFigures(
        gpu_busy_share=busy / 100 or None,
        seconds=sum(end - start for start, end in run_times(attempts, current)),
        steps_per_second=pace.median if pace else None,
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
    columns = metrics.read(session, job.id, metrics.count_rows(session, job.id), most_values=_READ_VALUES)
    pace = find_pace([each for each in columns if each.source == "job"])
    return build_figures(queries.attempts(session, job.id), current, pace, last_values(session, job.id))


def measure_end(session: Session, job: Job, current: datetime) -> RunFigures:
    """Measure one job from the last lines that it wrote; much cheaper than `measure_run`."""
    rows = metrics.last_rows(session, job.id, _LAST_ROWS)
    pace = measure_pace([(step, at.timestamp(), None) for step, at, _ in rows])
    values = {name: value for _, _, values in rows for name, value in values.items()}
    return build_figures(queries.attempts(session, job.id), current, pace, values)
