"""The experience of this installation: what share of its peaks each machine type reached in comparisons."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import exp, log
from statistics import fmean

from sqlalchemy import select
from sqlalchemy.orm import Session

from core.catalogue.machine_types import Catalogue
from core.comparison.bottleneck import judge_device
from core.comparison.differences import find_differences
from core.comparison.measurement import RunFigures, measure_end
from core.comparison.peaks import peaks_of_run
from core.db.database import now
from core.db.models.comparisons import Comparison, ComparisonJob
from core.db.models.jobs import Job
from core.jobs.states import JobState

_COMPARISONS = 20
_JOBS = 100  # most of the newest comparisons, and of their jobs, that are read
_ROUNDS = 200
_OF_DEVICE = frozenset({"compute", "memory"})  # what else bounds a run says nothing of a device

Times = Mapping[str, float]  # measured over least time of one program's step, by machine type


@dataclass(frozen=True, slots=True)
class Correction:
    """The experience of this installation with one machine type over another."""

    ratio: float
    count: int


class Experience:
    """One efficiency of each machine type, fitted to all comparisons by least squares on logarithms.

    The time of a program on a machine is the program's own factor, times that of the machine type.
    """

    def __init__(self, programs: Sequence[Times]) -> None:
        self._programs = [program for program in programs if len(program) > 1]
        logs = [{name: log(time) for name, time in times.items()} for times in self._programs]
        self._factors = dict.fromkeys((name for times in logs for name in times), 0.0)
        for _ in range(_ROUNDS):
            means = [fmean(time - self._factors[name] for name, time in times.items()) for times in logs]
            for name in self._factors:
                left = [times[name] - factor for times, factor in zip(logs, means, strict=True) if name in times]
                self._factors[name] = fmean(left)

    def correct(self, source: str | None, target: str) -> Correction | None:
        """Return the correction of a prediction from one machine type for another; None: never compared."""
        linked = {source}  # by comparisons, also over others
        for _ in self._programs:
            linked |= {name for program in self._programs if linked & program.keys() for name in program}
        if source is None or source == target or target not in linked:
            return None
        ratio = exp(self._factors[target] - self._factors[source])
        return Correction(ratio, sum(target in program for program in self._programs))


def find_experience(session: Session, catalogue: Catalogue) -> Experience:
    """Fit the comparisons whose jobs differ in nothing but real machine types, by their jobs that succeeded."""
    current = session.scalars(select(now())).one()
    return Experience(
        [
            measured_over_least([(job, measure_end(session, job, current)) for job in jobs], catalogue)
            for jobs in _compared_jobs(session)
            if not find_differences(jobs)
        ]
    )


def measured_over_least(runs: Iterable[tuple[Job, RunFigures]], catalogue: Catalogue) -> Times:
    """Return the mean of measured over least time of a step, without waiting for input, by machine type."""
    types = {machine.name: machine for machine in catalogue}
    ratios: dict[str, list[float]] = {}
    for job, run in runs:
        peaks = peaks_of_run(run, types.get(job.machine_type))
        if peaks is None or job.simulated or judge_device(run, peaks) not in _OF_DEVICE:
            continue
        if run.steps_per_second and run.flops_per_step and run.bytes_per_step:
            measured = max(1 - (run.input_wait_share or 0.0), 1e-6) / run.steps_per_second
            ratios.setdefault(job.machine_type, []).append(
                measured / peaks.seconds(run.flops_per_step, run.bytes_per_step)
            )
    return {name: exp(fmean(map(log, values))) for name, values in ratios.items()}


def _compared_jobs(session: Session) -> Sequence[Sequence[Job]]:
    local = select(Comparison.seq).where(Comparison.imported_from.is_(None))
    newest = local.order_by(Comparison.seq.desc()).limit(_COMPARISONS)
    query = (
        select(Comparison.seq, Job)
        .join(ComparisonJob, ComparisonJob.comparison_id == Comparison.id)
        .join(Job, Job.id == ComparisonJob.job_id)
        .where(Comparison.seq.in_(newest), Job.state == JobState.SUCCEEDED, Job.simulated.is_(False))
        .where(Job.deleted_at.is_(None))
        .order_by(Comparison.seq.desc(), Job.seq)
        .limit(_JOBS)
    )
    groups: dict[int, list[Job]] = {}
    for seq, job in session.execute(query):
        groups.setdefault(seq, []).append(job)
    return list(groups.values())
