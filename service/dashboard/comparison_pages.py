from collections.abc import Callable, Mapping, Sequence
from functools import partial
from urllib.parse import quote

from fastapi import Depends
from fastapi.responses import RedirectResponse, Response
from sqlalchemy.orm import Session

from core.comparison import comparisons
from core.db.models.comparisons import Comparison
from core.db.models.jobs import Job
from core.formatting import format_dollars, format_duration
from core.jobs import queries
from service.auth.authentication import PageCaller, SearchSlot, require_key_or_session
from service.auth.ownership import OwnerCheck
from service.dashboard.charts import Chart, Series
from service.dashboard.lists.numbered_pages import RequestedPage, read_page
from service.dashboard.login import FormTexts, SameOriginForm
from service.dashboard.rendering import render_page
from service.deps import AppStateDep, ReadSession, WriteSession
from service.http.routing import Router
from service.presenters.comparisons import comparison_view, front_names
from service.presenters.predictions import Precision, can_predict, prediction_view
from service.schemas.base import parse_request
from service.schemas.comparisons import BottleneckView, ComparisonView, MachineRow, RenameComparison, SpreadView

_PAGE_COMPARISONS = 20

router = Router(dependencies=[Depends(require_key_or_session), OwnerCheck])

_COLOURS = 8
_SECONDS_PER_HOUR = 3600


def draw_charts(session: Session, comparison: Comparison, view: ComparisonView) -> list[Chart]:
    """Return dollars against time, and the metric against time and against dollars, one line for each job.

    Marks are of machine types: medians over their jobs.
    """
    jobs = comparisons.jobs_of(session, comparison.id)
    types = dict.fromkeys([job.machine_type for job in jobs] or [row.machine_type for row in view.rows])
    colours = {kind: at % _COLOURS for at, kind in enumerate(types)}
    by_time, by_cost = _lines(comparisons.learning_curves(session, comparison, jobs), jobs, colours)
    marks = partial(_marks, view.rows, colours)
    charts = [
        Chart(
            f"{view.metric} by running time",
            "relative",
            by_time
            + marks(
                "on_metric_time_front",
                lambda row: (_median(row.seconds), _median(row.final)),
                lambda x, y: f"{y:.4g} in {format_duration(x)}",
            ),
        ),
        Chart(
            f"{view.metric} by cost",
            "cost",
            by_cost
            + marks(
                "on_metric_cost_front",
                lambda row: (row.cost, _median(row.final)),
                lambda x, y: f"{y:.4g} for {format_dollars(x)}",
            ),
        ),
    ]
    priced = any(row.price_per_hour for row in view.rows)
    return [
        chart for chart in ([_chart_costs(view, marks, colours), *charts] if priced else charts[:1]) if chart.series
    ]


def _lines(
    curves: Mapping[str, Sequence[tuple[float, float]]], jobs: Sequence[Job], colours: Mapping[str, int]
) -> tuple[list[Series], list[Series]]:
    """Return the curves by time, and by dollars."""
    by_time, by_cost = [], []
    several = len(colours) < len(jobs)
    for job in jobs:
        if job.id in curves:
            points = curves[job.id]
            values = [value for _, value in points]
            name = f"{job.machine_type} {job.id}" if several else job.machine_type
            text = f"last {values[-1]:.4g}, lowest {min(values):.4g}, highest {max(values):.4g}"
            colour, price = colours[job.machine_type], job.price_per_hour / _SECONDS_PER_HOUR
            by_time.append(Series(name, points, text, colour))
            by_cost.append(Series(name, [(seconds * price, value) for seconds, value in points], text, colour))
    return by_time, by_cost


def _chart_costs(view: ComparisonView, marks: Callable[..., list[Series]], colours: Mapping[str, int]) -> Chart:
    until = "" if view.target is None else f" to {view.target:g}"

    def figures(row: MachineRow) -> tuple[float | None, float | None]:
        if view.target is None:
            return _median(row.seconds), row.cost
        return _median(row.seconds_to_target), row.cost_to_target

    def describe(seconds: float, cost: float) -> str:
        return f"{format_duration(seconds)} for {format_dollars(cost)}"

    series = marks("on_time_cost_front", figures, describe, with_labels=True)
    for row in view.rows:
        spread = row.seconds if view.target is None else row.seconds_to_target
        if row.on_time_cost_front is not None and spread is not None and spread.low < spread.high:
            price = row.price_per_hour / _SECONDS_PER_HOUR  # the cost of each job follows from its time
            ends = [(seconds, seconds * price) for seconds in (spread.low, spread.high)]
            text = " to ".join(describe(*end) for end in ends)
            series.append(Series(f"{row.title}, all jobs", ends, text, colours[row.machine_type], "interval"))
    return Chart(f"Cost{until} by running time{until}", "relative", series, "cost")


def _marks(
    rows: Sequence[MachineRow],
    colours: Mapping[str, int],
    front: str,
    figures: Callable[[MachineRow], tuple[float | None, float | None]],
    text: Callable[[float, float], str],
    *,
    with_labels: bool = False,
) -> list[Series]:
    """Return the machine types that were judged for a front, which a field of their rows names, and its steps."""
    marks, fronts = [], dict[bool, list[Series]]()
    for row in rows:
        x, y = figures(row)
        judged = getattr(row, front)
        if x is not None and y is not None and judged is not None:
            label = f"{row.title}, {row.final.median:.4g}" if row.final else row.title
            shown = label if with_labels else ""
            mark = Series(row.title, [(x, y)], text(x, y), colours[row.machine_type], "marks", judged, shown)
            marks.append(mark)
            if judged:
                fronts.setdefault(row.simulated, []).append(mark)
    others = "" if all(row.simulated for row in rows) else " of simulated machines"
    return marks + [
        _steps(f"Pareto front{others if simulated else ''}", members, filled=not simulated)
        for simulated, members in fronts.items()
    ]


def _steps(name: str, members: list[Series], *, filled: bool) -> Series:
    """Return a front: the best that is reached up to each place of the horizontal axis."""
    ordered = sorted(members, key=lambda mark: mark.points[0])
    text = ", ".join(f"{mark.name} ({mark.text})" for mark in ordered)
    return Series(name, [mark.points[0] for mark in ordered], text, kind="steps", filled=filled)


def _median(spread: SpreadView | None) -> float | None:
    return None if spread is None else spread.median


@router.get("/ui/comparisons", dependencies=[SearchSlot])
def show_comparisons(
    session: ReadSession, app_state: AppStateDep, caller: PageCaller, requested: RequestedPage
) -> Response:
    page = read_page(session, comparisons.listed(), comparisons.orders(), requested, _PAGE_COMPARISONS)
    views = [comparison_view(session, app_state, comparison) for comparison in page.rows]
    return render_page("lists/sets.html", caller=caller, section="comparisons", page=page, sets=views)


@router.get("/ui/comparisons/{comparison_id}", dependencies=[SearchSlot])
def show_comparison(session: ReadSession, app_state: AppStateDep, caller: PageCaller, comparison_id: str) -> Response:
    """Show a comparison: its table, the differences between its jobs, and their learning curves."""
    comparison = comparisons.get(session, comparison_id)
    view = comparison_view(session, app_state, comparison)
    ended = next((job.job_id for row in view.rows for job in row.members if job.state == "Stopped"), None)
    return render_page(
        "comparisons/comparison.html",
        caller=caller,
        found=view,
        all_rows=[
            *((row, None) for row in view.rows),
            *((row, table.comparison_id) for table in view.same_program for row in table.rows),
        ],
        fronts=front_names(view.metric),
        judgements=_judgements(view.rows),
        estimated=ended if ended and not view.imported and can_predict(session, queries.get(session, ended)) else None,
        charts=draw_charts(session, comparison, view),
    )


@router.post("/ui/comparisons/{comparison_id}/rename", dependencies=[SameOriginForm])
def rename_comparison(session: WriteSession, comparison_id: str, texts: FormTexts) -> Response:
    named = parse_request(RenameComparison, {"name": texts.get("name")})
    comparisons.rename(session, comparison_id, named.name)
    return RedirectResponse(f"/ui/comparisons/{quote(comparison_id)}", 303)


@router.post("/ui/comparisons/{comparison_id}/delete", dependencies=[SameOriginForm])
def delete_comparison(session: WriteSession, comparison_id: str) -> Response:
    comparisons.delete(session, comparison_id)
    return RedirectResponse("/ui/comparisons", 303)


@router.get("/ui/jobs/{job_id}/prediction", dependencies=[SearchSlot])
def show_prediction(
    session: ReadSession,
    app_state: AppStateDep,
    caller: PageCaller,
    job_id: str,
    precision: Precision | None = None,
) -> Response:
    """Show what bounds a job, and estimates of it on all machine types."""
    job = queries.get(session, job_id)
    prediction = prediction_view(session, app_state, job, [], precision)
    name = job.shown_name
    return render_page("comparisons/prediction.html", caller=caller, found=prediction, name=name, precision=precision)


def _judgements(rows: Sequence[MachineRow]) -> list[tuple[BottleneckView, list[MachineRow]]]:
    judged = [(row.bottleneck, row) for row in rows if row.bottleneck is not None and row.bottleneck.kind is not None]
    distinct = [judgement for at, (judgement, _) in enumerate(judged) if judgement not in [of for of, _ in judged[:at]]]
    return [(judgement, [row for of, row in judged if of == judgement]) for judgement in distinct]
