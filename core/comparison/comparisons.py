from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import datetime
from functools import cache, partial
from itertools import combinations
from typing import Any, cast

from sqlalchemy import Select, SQLColumnExpression, bindparam, func, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from core.comparison import measurement
from core.comparison.differences import WORKSPACE, find_differences
from core.comparison.measurement import (
    Arrival,
    Goal,
    MeasurementCache,
    Spread,
    build_figures,
    last_values,
    other_cpus,
    peak_usage,
    read_pace,
    run_times,
)
from core.comparison.table import Member
from core.db.database import now
from core.db.light_rows import LightRows
from core.db.models.comparisons import Comparison, ComparisonJob
from core.db.models.jobs import Attempt, Job, Project
from core.errors import ComparisonNotFound, CursorInvalid, SpecInvalid, StoreUnavailable
from core.ids import new_id
from core.jobs import queries
from core.jobs.states import JobState
from core.jobs.tracking import metrics
from core.jobs.tracking.metric_limits import MAX_NAME

MAX_JOBS = 100  # most jobs of one comparison
_ROWS = LightRows(Comparison)
_CURVE_POINTS = 500
_SHOWN_IMPORTS = 5
_measured: MeasurementCache[tuple[Spread | None, float | None, Arrival | None, dict[str, float | None]]]
_measured = MeasurementCache()
_curves: MeasurementCache[list[tuple[float, float]]] = MeasurementCache()


def check_metric(metric: str | None, target: float | None) -> None:
    if target is not None and metric is None:
        raise SpecInvalid("A target needs a metric; also give metric.", field="metric")
    if metric is not None and not 0 < len(metric) <= MAX_NAME:
        raise SpecInvalid(f"The name of a metric has 1 to {MAX_NAME} characters.", field="metric")


def create(session: Session, new: Comparison, jobs: Sequence[Job]) -> None:
    """Store a comparison of jobs of one project.

    Raises `StoreUnavailable`: another request with its Idempotency-Key was faster.
    """
    _check_jobs(jobs)
    insert(session, new, jobs[0].project_id)
    session.add_all(ComparisonJob(comparison_id=new.id, job_id=job.id) for job in jobs)
    session.flush()


def insert(session: Session, new: Comparison, project_id: str) -> None:
    """Store a comparison that has no jobs yet, or none here."""
    new.id, new.project_id, new.created_at = new_id("c"), project_id, session.scalars(select(now())).one()
    session.add(new)
    try:
        session.flush()
    except IntegrityError as error:
        if new.idempotency_key is None:
            raise
        raise StoreUnavailable("The same comparison is being created by another request. Try again.") from error


def add_jobs(session: Session, comparison_id: str, jobs: Sequence[Job]) -> None:
    """Add jobs to a comparison; those that it has already stay."""
    present = jobs_of(session, comparison_id)
    present_ids = {job.id for job in present}
    new = [job for job in jobs if job.id not in present_ids]
    _check_jobs([*present, *new])
    session.add_all(ComparisonJob(comparison_id=comparison_id, job_id=job.id) for job in new)
    session.flush()


def _check_jobs(jobs: Sequence[Job]) -> None:
    if not 1 < len({job.id for job in jobs}) == len(jobs) <= MAX_JOBS:
        raise SpecInvalid(f"A comparison has 2 to {MAX_JOBS} different jobs; {len(jobs)} were given.", field="jobs")
    if len({job.project_id for job in jobs}) > 1:
        raise SpecInvalid("The jobs belong to several projects; compare jobs of one project.", field="jobs")
    for difference in find_differences(jobs):
        if difference.name in WORKSPACE:
            programs = "; ".join(f"{value or 'none'}: {', '.join(ids)}" for value, ids in difference.values.items())
            raise SpecInvalid(
                f"The jobs ran different programs ({difference.name} {programs}). Compare jobs with the same "
                "workspace.",
                field="jobs",
            )


def share_ceiling(session: Session, comparison_id: str) -> None:
    """Let all jobs of a comparison count towards the ceilings of each."""
    members = select(ComparisonJob.job_id).where(ComparisonJob.comparison_id == comparison_id)
    alone = update(Job).where(Job.id.in_(members), Job.cost_set.is_(None)).values(cost_set=comparison_id)
    session.execute(alone, execution_options={"synchronize_session": False})


def get(session: Session, comparison_id: str) -> Comparison:
    comparison = session.scalar(select(Comparison).where(Comparison.id == comparison_id))
    if comparison is None:
        raise ComparisonNotFound(comparison_id)
    return comparison


def by_ids(session: Session, ids: Collection[str]) -> list[Comparison]:
    return list(session.scalars(select(Comparison).where(Comparison.id.in_(ids)))) if ids else []


def listed() -> Select[Comparison]:
    return select(Comparison).join(Project).where(Project.deleted_at.is_(None))


def orders() -> dict[str, SQLColumnExpression[Any]]:
    """Return what a list of comparisons can be ordered by; their figures are measured anew for each."""
    members = select(func.count(ComparisonJob.job_id)).join(Job, Job.id == ComparisonJob.job_id)
    jobs = members.where(Job.deleted_at.is_(None), ComparisonJob.comparison_id == Comparison.id).scalar_subquery()
    return {
        "name": func.lower(Comparison.name),
        "jobs": func.coalesce(Comparison.imported_jobs, jobs),
        "created": Comparison.seq,
    }


def page(session: Session, *, limit: int, after: str | None = None) -> list[Comparison]:
    """Return comparisons, newest first, that were created before the one of the id `after`."""
    query = listed().order_by(Comparison.seq.desc())
    if after is not None:
        try:
            query = query.where(Comparison.seq < get(session, after).seq)
        except ComparisonNotFound as error:
            raise CursorInvalid(f"There is no comparison {after!r} to continue after.", field="after") from error
    return list(session.scalars(query.limit(limit)))


def rename(session: Session, comparison_id: str, name: str | None) -> Comparison:
    comparison = get(session, comparison_id)
    comparison.name = (name or "").strip() or None
    return comparison


def delete(session: Session, comparison_id: str) -> None:
    """Delete a comparison; its jobs stay."""
    comparison = get(session, comparison_id)
    for member in session.scalars(select(ComparisonJob).where(ComparisonJob.comparison_id == comparison.id)):
        session.delete(member)
    session.flush()
    session.delete(comparison)


def imports_like(session: Session, comparison: Comparison, program: str) -> list[Comparison]:
    """Return the newest imported comparisons of this program that were judged in the same way."""
    query = (
        select(Comparison)
        .join(Project)
        .where(Comparison.imported_program == program, Project.deleted_at.is_(None), Comparison.goal == comparison.goal)
        .where(Comparison.metric.is_not_distinct_from(comparison.metric))
        .where(Comparison.target.is_not_distinct_from(comparison.target))
    )
    return list(session.scalars(query.order_by(Comparison.seq.desc()).limit(_SHOWN_IMPORTS)))


def jobs_of(session: Session, comparison_id: str) -> list[Job]:
    members = select(ComparisonJob.job_id).where(ComparisonJob.comparison_id == comparison_id)
    query = select(Job).where(Job.id.in_(members), Job.deleted_at.is_(None)).order_by(Job.seq)
    return list(session.scalars(query))


def job_counts(session: Session, ids: Sequence[str]) -> dict[str, tuple[int, int]]:
    query = (
        select(ComparisonJob.comparison_id, func.count(Job.finished_at), func.count())
        .join(Job, Job.id == ComparisonJob.job_id)
        .where(ComparisonJob.comparison_id.in_(ids), Job.deleted_at.is_(None))
        .group_by(ComparisonJob.comparison_id)
    )
    return {comparison_id: (ended, total) for comparison_id, ended, total in session.execute(query)}


def comparisons_of(session: Session, ids: Sequence[str]) -> dict[str, list[Comparison]]:
    """Return the comparisons of each of these jobs, oldest first."""
    comparisons: dict[str, list[Comparison]] = {}
    for job_id, *comparison in session.execute(_comparisons_of(), {"ids": ids}):
        comparisons.setdefault(job_id, []).append(_ROWS.make(comparison))
    return comparisons


@cache
def _comparisons_of() -> Select[*tuple[Any, ...]]:
    of_jobs = select(ComparisonJob.job_id, *_ROWS.columns).join(
        Comparison, Comparison.id == ComparisonJob.comparison_id
    )
    return of_jobs.where(ComparisonJob.job_id.in_(bindparam("ids", expanding=True))).order_by(Comparison.seq)


def measure(session: Session, comparison: Comparison, jobs: Sequence[Job]) -> list[Member]:
    current = session.scalars(select(now())).one()
    attempts = {job.id: queries.attempts(session, job.id) for job in jobs}
    beside = _side_by_side([attempt for job in jobs if job.backend != "tpu" for attempt in attempts[job.id]], current)
    return [
        replace(_measure(session, comparison, job, attempts[job.id], current), beside=job.id in beside) for job in jobs
    ]


def _side_by_side(attempts: Sequence[Attempt], current: datetime) -> set[str]:
    """Return the ids of jobs that ran at the same time as another one on the same host."""
    runs = [
        (attempt, attempt.started_at, attempt.ended_at or current)
        for attempt in attempts
        if attempt.started_at is not None
    ]
    return {
        attempt.job_id
        for (first, began, ended), (other, other_began, other_ended) in combinations(runs, 2)
        if first.host == other.host and first.job_id != other.job_id and began < other_ended and other_began < ended
        for attempt in (first, other)
    }


def learning_curves(
    session: Session, comparison: Comparison, jobs: Sequence[Job]
) -> dict[str, list[tuple[float, float]]]:
    """Return the comparison's metric by running time in seconds, for each job that reported it."""
    current = session.scalars(select(now())).one()
    curves: dict[str, list[tuple[float, float]]] = {}
    metric = comparison.metric
    for job in jobs if metric else ():
        runs = run_times(queries.attempts(session, job.id), current)
        measure = partial(_measure_curve, session, metric, job, runs)
        if curve := _curves.get(job, current, (metric, *runs), measure):
            curves[job.id] = curve
    return curves


def _measure(
    session: Session, comparison: Comparison, job: Job, attempts: Sequence[Attempt], current: datetime
) -> Member:
    runs = run_times(attempts, current)
    inputs = (comparison.metric, comparison.goal, comparison.target, *runs)
    read = partial(_read_metrics, session, comparison, job, runs)
    pace, final, arrival, values = _measured.get(job, current, inputs, read)
    return Member(
        job_id=job.id,
        machine_type=job.machine_type,
        simulated=job.simulated,
        state=_state(job),
        price_per_hour=job.price_per_hour,
        gpus=job.gpu_count,
        seconds=sum(end - start for start, end in runs),
        pace=pace,
        final=final,
        arrival=arrival,
        memory_bytes=peak_usage(attempts, "peak_memory_bytes"),
        gpu_memory_bytes=peak_usage(attempts, "peak_gpu_memory_bytes"),
        figures=build_figures(job, attempts, current, pace, values),
        other_cpus=other_cpus(attempts),
    )


def _read_metrics(
    session: Session, comparison: Comparison, job: Job, runs: Sequence[tuple[float, float]]
) -> tuple[Spread | None, float | None, Arrival | None, dict[str, float | None]]:
    name, goal, target = comparison.metric, cast(Goal, comparison.goal), comparison.target
    final = arrival = None
    if name is not None:
        final = measurement.final_value(session, job.id, name)
        if target is not None:
            arrival = measurement.find_arrival(session, job.id, name, goal, target, runs)
    return read_pace(session, job), final, arrival, last_values(session, job.id)


def _measure_curve(
    session: Session, metric: str | None, job: Job, runs: Sequence[tuple[float, float]]
) -> list[tuple[float, float]]:
    """Return about as many of a job's reports of a metric as a curve shows."""
    rows = [row for row in metrics.count_rows(session, job.id) if row.source == "job"]
    columns = metrics.read(session, job.id, rows, most_values=_CURVE_POINTS, name=metric)
    return measurement.learning_curve(next((column.points for column in columns), []), runs)


def _state(job: Job) -> str:
    if not job.ended:
        return "unfinished"
    states = {JobState.SUCCEEDED: "succeeded", JobState.CANCELLED: "cancelled"}
    return states.get(JobState(job.state), "failed")
