"""The experience of this installation: measured over predicted times in its comparisons, by machine type."""

from collections.abc import Iterable, Sequence
from itertools import permutations

from sqlalchemy import select
from sqlalchemy.orm import Session

from core.catalogue.machine_types import Catalogue
from core.comparison.differences import find_differences
from core.comparison.peaks import SINGLE, peaks_of, peaks_of_run
from core.comparison.prediction import Correction, missing_figures, predict_step
from core.comparison.run_figures import RunFigures, measure_end
from core.db.database import now
from core.db.models.comparisons import Comparison, ComparisonJob
from core.db.models.jobs import Job
from core.jobs.states import JobState

_COMPARISONS = 20
_JOBS = 100
"""Most of the newest comparisons, and of their jobs, that are read."""


def find_corrections(session: Session, catalogue: Catalogue) -> dict[str, Correction]:
    """Compare what each run of a comparison predicts for the other machine types with what was measured on them.

    Only jobs that succeeded on real machines count, in comparisons whose jobs differ in nothing else.

    Returns:
        Corrections by name of the machine type.
    """
    current = session.scalars(select(now())).one()
    ratios: dict[str, list[float]] = {}
    for jobs in _compared_jobs(session):
        if find_differences(jobs):
            continue
        runs = [(job, measure_end(session, job, current)) for job in jobs]
        for name, ratio in compare_predictions(runs, catalogue):
            ratios.setdefault(name, []).append(ratio)
    return {name: Correction.of(found) for name, found in ratios.items()}


def compare_predictions(runs: Iterable[tuple[Job, RunFigures]], catalogue: Catalogue) -> list[tuple[str, float]]:
    """Return machine type and measured over predicted time, for each pair of runs on different machine types."""
    types = {machine.name: machine for machine in catalogue}
    found = []
    usable = [(job, run) for job, run in runs if job.machine_type in types and not missing_figures(run)]
    for (job, run), (other, measured) in permutations(usable, 2):
        if job.machine_type == other.machine_type:
            continue
        bits = measured.compute_bits or SINGLE
        source = peaks_of_run(run, types[job.machine_type], simulated=job.simulated)
        target = peaks_of(types[other.machine_type], bits, measured.replicas)
        if source is not None and target is not None:
            predicted = predict_step(run, source, target, bits=bits).value
            found.append((other.machine_type, 1 / (measured.steps_per_second or 1.0) / predicted))
    return found


def _compared_jobs(session: Session) -> Sequence[Sequence[Job]]:
    newest = select(Comparison.seq).order_by(Comparison.seq.desc()).limit(_COMPARISONS)
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
