from collections.abc import Iterable, Sequence
from dataclasses import astuple
from typing import Any, Literal, cast

from sqlalchemy.orm import Session

from core.comparison import comparisons
from core.comparison.differences import find_differences, program_digest
from core.comparison.measurement import middle_figures
from core.comparison.ranking import LEVEL, Standing
from core.comparison.table import RANKED, Decision, Member, Row, build_table, decide
from core.db.models.comparisons import Comparison
from core.db.models.jobs import Job
from core.errors import MachineTypeUnknown
from core.formatting import format_cost, format_duration, format_price
from service.app_state import AppState
from service.presenters.comparison_files import imported_rows, imported_view
from service.presenters.jobs import public_state
from service.presenters.predictions import bottleneck_view
from service.schemas.comparisons import (
    BottleneckView,
    ComparisonsPage,
    ComparisonSummary,
    ComparisonView,
    DecisionView,
    DifferenceView,
    MachineRow,
    MemberView,
)

_BUSY_CPUS = 0.5  # load of other programs from which it is said beside a machine type


def comparison_view(session: Session, app_state: AppState, comparison: Comparison) -> ComparisonView:
    """Measure the jobs of a comparison and return its table; of an imported one, the table that was imported."""
    if comparison.imported_file is not None:
        return imported_view(comparison.imported_file, dict(comparison_summary(app_state, comparison, (0, 0))))
    jobs = comparisons.jobs_of(session, comparison.id)
    members = comparisons.measure(session, comparison, jobs)
    differences, program = find_differences(jobs), program_digest(jobs)
    goal = cast(Literal["max", "min"], comparison.goal)
    ids = {job.id for job in jobs}
    added = any(job.parent_id in ids for job in jobs)  # a repeat that is added is a clone of one before
    rows = build_table(members, goal, comparison.target, ranked=not differences, added=added)
    decision = None if differences else decide(rows, by_target=comparison.target is not None, added=added)
    ended = sum(job.ended for job in jobs)
    summary = comparison_summary(app_state, comparison, (ended, len(jobs)))
    by_id = {job.id: job for job in jobs}
    return ComparisonView(
        **dict(summary),
        rows=[_row_view(app_state, row, by_id) for row in rows],
        decision=decision and _decision_view(app_state, comparison, decision),
        verdict=_headline(comparison, decision)
        if decision
        else _undecided(comparison, rows, ranked=not differences, over=ended == len(jobs)),
        results=_results(rows),
        differences=[
            DifferenceView(name=difference.name, values={value: list(ids) for value, ids in difference.values.items()})
            for difference in differences
        ],
        notes=_notes(comparison, rows, {job.id for job in jobs if job.logs_removed_at}, ranked=not differences),
        same_program=[
            imported_rows(imported.id, imported.imported_file or "")
            for imported in (comparisons.imports_like(session, comparison, program) if program else ())
        ],
    )


def _decision_view(app_state: AppState, comparison: Comparison, decision: Decision) -> DecisionView:
    return DecisionView.of(
        decision,
        machine_type=decision.best.machine_type,
        simulated=decision.best.simulated,
        contenders=[row.machine_type for row in decision.contenders],
        headline=_headline(comparison, decision),
        changes=_changes(app_state, decision),
    )


def _headline(comparison: Comparison, decision: Decision) -> str:
    best, what = decision.best, "cheapest" if decision.by == "cost" else "fastest"
    if decision.probability is None:
        sure = f"{what}, with one repeat each, which does not rule out chance"
    else:
        sure = f"{what} with a probability of {min(max(decision.probability, 0.01), 0.99):.0%}"
    if comparison.target is not None and best.seconds_to_target is not None:
        time = format_duration(best.seconds_to_target.median)
        cost = format_cost(best.cost_to_target or 0.0, best.gpu_hours_to_target or 0.0)
        figure = f"{cost} and {time} to {comparison.metric} {comparison.target:g}"
    else:
        cost = format_cost(best.cost_per_1000_steps or 0.0, best.gpu_hours_per_1000_steps or 0.0)
        figure = f"{cost} for 1,000 steps"
    undecided = len(decision.contenders) > 1
    if best.simulated:
        lead = f"{_title(best)} is best{' so far' if undecided else ''}"
        return f"{lead} (all are simulated, so this is not a recommendation): {figure}; {sure}."
    advice = "Not decided yet; best so far is" if undecided else "Take"
    return f"{advice} {_title(best)}: {figure}; {sure}."


def _undecided(comparison: Comparison, rows: list[Row], *, ranked: bool, over: bool) -> str:
    """Return why no machine type is the best, in a sentence."""
    if not ranked:
        return "Nothing is ranked: the jobs differ in more than the machine type."
    finals = [row for row in rows if row.final is not None]
    if not over or comparison.target is None or len(finals) < len(rows):  # without figures, it may have reached it
        return f"Nothing is decided{'' if over else ' yet'}: fewer than two machine types have figures."
    goal = f"{comparison.metric} {comparison.target:g}"
    for row in rows:
        if row.seconds_to_target is not None:  # of no other row, or there would be a decision
            time = format_duration(row.seconds_to_target.median)
            cost = format_cost(row.cost_to_target or 0.0, row.gpu_hours_to_target or 0.0)
            return f"Only {_title(row)} reached {goal} in every job: {cost} and {time}."
    best = (max if comparison.goal == "max" else min)(row.final.median for row in finals if row.final)
    names = _join(_title(row) for row in finals if row.final and row.final.median == best)
    final = f"the best final value, the median of the last fifth, is {best:.4g}, on {names}"
    return f"No machine type reached {goal} in every job; {final}."


def _changes(app_state: AppState, decision: Decision) -> list[str]:
    """Return what would change the decision: prices, more repeats, and doubts of the figures."""
    best, rival, changes = decision.best, decision.rival, list[str]()
    if decision.break_even_price is not None:
        price = best.price_per_hour
        least = rival.price_per_hour * price / decision.break_even_price
        changes.append(
            f"{best.machine_type} wins as long as it costs less than ${decision.break_even_price:.3g}/h; it costs "
            f"{_price(app_state, best)}."
        )
        changes.append(
            f"{rival.machine_type}, the runner-up, wins below ${least:.3g}/h; it costs {_price(app_state, rival)}."
        )
    if decision.more_repeats:
        names = _join(_title(row) for row in decision.contenders)
        changes.append(f"About {_more(decision.more_repeats)} on {names} would decide.")
    elif len(decision.contenders) > 1:
        changes.append(f"{_join(_title(row) for row in decision.contenders)} show no measurable difference.")
    return changes


def _price(app_state: AppState, row: Row) -> str:
    """Return a price with its source, and a warning if that is old."""
    price = f"{format_price(row.price_per_hour)}/h"
    try:
        machine = app_state.catalogue.get(row.machine_type)
    except MachineTypeUnknown:  # no longer offered
        return price
    if machine.price_per_hour != row.price_per_hour:
        return f"{price} when it ran; now {format_price(machine.price_per_hour)}/h ({machine.price_source})"
    old = "; older than six months" if machine.price_is_old else ""
    return f"{price} ({machine.price_source}{old})"


def comparison_summary(app_state: AppState, comparison: Comparison, counts: tuple[int, int]) -> ComparisonSummary:
    """Return the fields of a comparison, without figures."""
    ended, total = (comparison.imported_jobs,) * 2 if comparison.imported_jobs is not None else counts
    return ComparisonSummary.of(
        comparison, jobs=total, ended=ended, url=f"{app_state.settings.public_url}/ui/comparisons/{comparison.id}"
    )


def _row_view(app_state: AppState, row: Row, jobs: dict[str, Job]) -> MachineRow:
    states = [member.state for member in row.members]
    return MachineRow.of(
        row,
        title=_title(row),
        jobs=len(row.members),
        succeeded=states.count("succeeded"),
        failed=states.count("failed"),
        peak_memory_bytes=row.memory_bytes,
        peak_gpu_memory_bytes=row.gpu_memory_bytes,
        marks=_marks(row),
        fastest=row.fastest.rank,
        cheapest=row.cheapest.rank,
        most_accurate=row.most_accurate.rank,
        slower_by=row.fastest.to_best,
        dearer_by=row.cheapest.to_best,
        worse_by=row.most_accurate.to_best,
        bottleneck=_bottleneck(app_state, row),
        members=[_member_view(app_state, member, jobs[member.job_id]) for member in row.members],
    )


def _marks(row: Row) -> list[str]:
    """Return what has to stand beside the name of a row wherever its figures do."""
    ended = [member for member in row.members if member.state not in {"unfinished", "cancelled"}]
    cancelled = sum(member.state == "cancelled" for member in row.members)
    failed = len(ended) - len(row.done)
    beside = sum(member.beside for member in row.members)
    load = max((member.other_cpus or 0.0 for member in row.members), default=0.0)
    lost = sum(member.final is None for member in row.done) if row.final else 0
    return [
        *["simulated"] * row.simulated,
        *[f"{failed} of {len(ended)} failed"] * bool(failed),
        *[f"{cancelled} cancelled"] * bool(cancelled),
        *[f"{lost} of {len(row.done)} without a final value"] * bool(lost),
        *[f"{beside} of {len(row.members)} ran side by side"] * bool(beside),
        *[f"other programs kept {load:.1f} CPUs busy"] * (load >= _BUSY_CPUS),
    ]


def _title(row: Row) -> str:
    lost = [mark for mark in _marks(row) if mark.endswith(("failed", "final value"))]
    return f"{row.machine_type} ({', '.join(lost)})" if lost else row.machine_type


def _results(rows: Sequence[Row]) -> list[str]:
    """Say for each figure which machine type is first, by how much and how surely; or what would decide it."""
    kinds = [[row for row in rows if row.simulated is simulated] for simulated in (False, True)]
    return [
        f"{adjective.capitalize()}{' (simulated)' if kind[0].simulated else ''}: {text}."
        for kind in kinds
        for field, adjective in RANKED.items()
        if (text := _describe_first(kind, field))
    ]


def _describe_first(rows: Sequence[Row], field: str) -> str | None:
    standings = {_title(row): cast(Standing, getattr(row, field)) for row in rows}
    standings = {name: standing for name, standing in standings.items() if standing.rank or standing.more_repeats}
    if len(standings) < 2:  # noqa: PLR2004 - one alone is compared with nothing
        return None
    first = [name for name, standing in standings.items() if standing.rank == 1]
    single = {name: standing.more_repeats for name, standing in standings.items() if standing.rank is None}
    if single:
        repeats = max(repeats_needed or 0 for repeats_needed in single.values())
        return (
            f"not decided: at least {_more(repeats)} on {_join(single)} needed, since one repeat does not rule out "
            "chance"
        )
    best = next(name for name, standing in standings.items() if standing.to_best is None)
    rest = {name: standing for name, standing in standings.items() if name != best}
    if len(first) == 1:
        name, next_one = min(rest.items(), key=lambda entry: cast(Any, entry[1].to_best).value)
        return f"{best}; {name}, the runner-up, {_differs(next_one, field)}"
    needed = [standing.more_repeats for name, standing in rest.items() if name in first]
    counts = [number for number in needed if number]
    between = f"not decided between {_join(first)}"
    if not counts:
        return f"{between}, which show no measurable difference"
    return f"{between}: about {_more(max(counts))} would decide"


def _differs(standing: Standing, field: str) -> str:
    value, low, high = astuple(cast(Any, standing.to_best))
    sure = f"({1 - LEVEL:.0%} interval"
    if field == "most_accurate":
        return f"is {value:.3g} worse {sure} {low:.3g} to {high:.3g})"
    what = "takes" if field == "fastest" else "costs"
    return f"{what} {1 + value:.3g} times as much {sure} {1 + low:.3g} to {1 + high:.3g})"


def _more(count: int) -> str:
    return f"{count} more repeat{'s' * (count != 1)}"


def _join(names: Iterable[str]) -> str:
    *before, last = names
    return f"{', '.join(before)} and {last}" if before else last


def _bottleneck(app_state: AppState, row: Row) -> BottleneckView | None:
    if not row.done:
        return None
    figures = middle_figures([member.figures for member in row.done])
    return bottleneck_view(app_state, figures, row.machine_type, simulated=row.simulated)


def _member_view(app_state: AppState, member: Member, job: Job) -> MemberView:
    return MemberView.of(
        member,
        job_id=job.id,
        state=public_state(job.state, job.exit_code),
        steps_per_second=member.pace.median if member.pace else None,
        seconds_to_target=member.arrival.seconds if member.arrival else None,
        steps_to_target=member.arrival.step if member.arrival else None,
        other_cpus=None if member.other_cpus is None else round(member.other_cpus, 2),
        url=f"{app_state.settings.public_url}/ui/jobs/{job.id}",
    )


def _notes(comparison: Comparison, rows: Sequence[Row], unmeasured: set[str], *, ranked: bool) -> list[str]:
    """Return what a reader of the table has to know."""
    notes = []
    if not ranked:
        notes.append("The jobs differ in more than the machine type, so nothing is ranked.")
    if any(row.simulated for row in rows):
        notes.append(
            "Simulated machine types ran on this server's CPU: their measurements say nothing about the real "
            "machines, and they are not ranked together with real ones."
        )
    if any(member.state == "unfinished" for row in rows for member in row.members):
        notes.append("Some jobs have not ended; only jobs that succeeded are counted.")
    if any(member.beside for row in rows for member in row.members):
        notes.append(
            "Jobs that ran side by side on one host slowed each other down, so their times are less reliable. "
            "Without --parallel, compare create runs jobs one at a time."
        )
    if unmeasured:
        notes.append(
            "Measurements are missing because metrics were deleted together with logs: "
            f"{', '.join(sorted(unmeasured))}."
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
    left_out: dict[tuple[str, ...], list[str]] = {}
    for field, name in front_names(comparison.metric).items():
        judged = {row.simulated for row in rows if getattr(row, field) is not None}
        missing = tuple(
            row.machine_type
            for row in rows
            if row.seconds is not None and row.simulated in judged and getattr(row, field) is None
        )
        if missing:
            left_out.setdefault(missing, []).append(name)
    return [
        f"Left out of the Pareto front of {', and of '.join(names)} because a measurement is missing: "
        f"{', '.join(missing)}."
        for missing, names in left_out.items()
    ]


def comparisons_page(session: Session, app_state: AppState, limit: int, after: str | None) -> ComparisonsPage:
    rows = comparisons.page(session, limit=limit + 1, after=after)
    shown = rows[:limit]
    counts = comparisons.job_counts(session, [comparison.id for comparison in shown])
    return ComparisonsPage(
        comparisons=[
            comparison_summary(app_state, comparison, counts.get(comparison.id, (0, 0))) for comparison in shown
        ],
        next=shown[-1].id if len(rows) > limit else None,
    )
