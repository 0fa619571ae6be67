"""Views of comparisons."""

from collections.abc import Sequence
from typing import Literal, cast

from sqlalchemy.orm import Session

from core.comparison import comparisons
from core.comparison.differences import find_differences
from core.comparison.run_figures import middle_figures
from core.comparison.table import Member, Row, Spread, build_table
from core.db.models.comparisons import Comparison
from core.db.models.jobs import Job
from service.deps import AppState
from service.presenters.jobs import public_state
from service.presenters.predictions import bottleneck_view
from service.schemas.comparisons import (
    BottleneckView,
    ComparisonSummary,
    ComparisonView,
    DifferenceView,
    MachineRow,
    MemberView,
    SpreadView,
)


def comparison_view(session: Session, app_state: AppState, comparison: Comparison) -> ComparisonView:
    """Measure the jobs of a comparison and return its table."""
    jobs = comparisons.jobs_of(session, comparison.id)
    members = comparisons.measure(session, comparison, jobs)
    differences = find_differences(jobs)
    goal = cast(Literal["max", "min"], comparison.goal)
    rows = build_table(members, goal, comparison.target, ranked=not differences)
    ended = sum(job.ended for job in jobs)
    summary = comparison_summary(app_state, comparison, (ended, len(jobs)))
    by_id = {job.id: job for job in jobs}
    return ComparisonView(
        **dict(summary),
        rows=[_row_view(app_state, row, by_id) for row in rows],
        differences=[
            DifferenceView(name=each.name, values={value: list(ids) for value, ids in each.values.items()})
            for each in differences
        ],
        notes=_notes(comparison, rows, {job.id for job in jobs if job.logs_removed_at}, ranked=not differences),
    )


def comparison_summary(app_state: AppState, comparison: Comparison, counts: tuple[int, int]) -> ComparisonSummary:
    """Return the fields of a comparison, without figures.

    Args:
        app_state: The application's state.
        comparison: The comparison.
        counts: Its jobs that have ended, and all of its jobs.
    """
    ended, total = counts
    return ComparisonSummary(
        id=comparison.id,
        name=comparison.name,
        project_id=comparison.project_id,
        created_at=comparison.created_at,
        metric=comparison.metric,
        goal=cast(Literal["max", "min"], comparison.goal),
        target=comparison.target,
        jobs=total,
        ended=ended,
        url=f"{app_state.settings.public_url}/ui/comparisons/{comparison.id}",
    )


def _row_view(app_state: AppState, row: Row, jobs: dict[str, Job]) -> MachineRow:
    states = [member.state for member in row.members]
    return MachineRow(
        machine_type=row.machine_type,
        simulated=row.simulated,
        jobs=len(row.members),
        succeeded=states.count("succeeded"),
        failed=states.count("failed"),
        steps_per_second=_spread_view(row.steps_per_second),
        speedup=row.speedup,
        best=_spread_view(row.best),
        seconds=_spread_view(row.seconds),
        seconds_to_target=_spread_view(row.seconds_to_target),
        peak_memory_bytes=row.memory_bytes,
        peak_gpu_memory_bytes=row.gpu_memory_bytes,
        price_per_hour=row.price_per_hour,
        cost=row.cost,
        cost_to_target=row.cost_to_target,
        cost_per_1000_steps=row.cost_per_1000_steps,
        fastest=row.fastest,
        cheapest=row.cheapest,
        most_accurate=row.most_accurate,
        on_metric_time_front=row.on_metric_time_front,
        on_metric_cost_front=row.on_metric_cost_front,
        on_time_cost_front=row.on_time_cost_front,
        bottleneck=_bottleneck(app_state, row),
        members=[_member_view(app_state, member, jobs[member.job_id]) for member in row.members],
    )


def _bottleneck(app_state: AppState, row: Row) -> BottleneckView | None:
    done = [member.figures for member in row.members if member.state == "succeeded"]
    if not done:
        return None
    return bottleneck_view(app_state, middle_figures(done), row.machine_type, simulated=row.simulated)


def _member_view(app_state: AppState, member: Member, job: Job) -> MemberView:
    return MemberView(
        job_id=job.id,
        state=public_state(job.state, job.exit_code),
        steps_per_second=member.pace.median if member.pace else None,
        best=member.best,
        seconds=member.seconds,
        seconds_to_target=member.arrival.seconds if member.arrival else None,
        steps_to_target=member.arrival.step if member.arrival else None,
        url=f"{app_state.settings.public_url}/ui/jobs/{job.id}",
    )


def _spread_view(spread: Spread | None) -> SpreadView | None:
    return None if spread is None else SpreadView(median=spread.median, low=spread.low, high=spread.high)


def _notes(comparison: Comparison, rows: Sequence[Row], unmeasured: set[str], *, ranked: bool) -> list[str]:
    """Return what a reader of the table has to know.

    Args:
        comparison: The comparison.
        rows: Its table.
        unmeasured: Ids of the jobs whose metrics were deleted.
        ranked: The jobs differ in nothing but the machine type.
    """
    notes = []
    if not ranked:
        notes.append("The jobs differ in more than the machine type, so nothing is ranked.")
    if any(row.simulated for row in rows):
        notes.append(
            "Simulated machine types ran on this server's CPU: their figures say nothing about the machines they stand "
            "for, and they are not ranked beside real ones."
        )
    if any(member.state == "unfinished" for row in rows for member in row.members):
        notes.append("Some jobs have not ended; figures are of those that succeeded.")
    if unmeasured:
        notes.append(
            f"Figures are missing because metrics were deleted together with logs: {', '.join(sorted(unmeasured))}."
        )
    if comparison.target is not None:
        judged = [(row, member) for row in rows for member in row.members if member.job_id not in unmeasured]
        missed = dict.fromkeys(
            row.machine_type for row, member in judged if member.state == "succeeded" and member.arrival is None
        )
        if missed:
            notes.append(f"Not every job reached the target: {', '.join(missed)}.")
    return [*notes, *_left_out(comparison, rows)]


def front_names(metric: str | None) -> dict[str, str]:
    """Return the names of the Pareto fronts by the row's field."""
    of_metric = {"on_metric_time_front": f"{metric} and time", "on_metric_cost_front": f"{metric} and cost"}
    return {**(of_metric if metric else {}), "on_time_cost_front": "time and cost"}


def _left_out(comparison: Comparison, rows: Sequence[Row]) -> list[str]:
    """Name the machine types that succeeded and lack a figure of a front, each set of them once."""
    found: dict[tuple[str, ...], list[str]] = {}
    for field, name in front_names(comparison.metric).items():
        judged = {row.simulated for row in rows if getattr(row, field) is not None}
        missing = tuple(
            row.machine_type
            for row in rows
            if row.seconds is not None and row.simulated in judged and getattr(row, field) is None
        )
        if missing:
            found.setdefault(missing, []).append(name)
    return [
        f"Left out of the Pareto front of {', and of '.join(names)}, for lack of a figure: {', '.join(missing)}."
        for missing, names in found.items()
    ]
