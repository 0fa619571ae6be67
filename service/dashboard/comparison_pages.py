from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Literal
from urllib.parse import quote

from fastapi import APIRouter, Depends
from fastapi.responses import RedirectResponse, Response
from sqlalchemy.orm import Session

from core.comparison import comparisons
from core.db.models.comparisons import Comparison
from core.db.models.jobs import Job
from core.formatting import format_dollars, format_duration
from core.jobs import queries
from service.auth.authentication import PageCaller, SearchSlot, require_key_or_session
from service.auth.ownership import OwnerCheck
from service.dashboard.charts.line_chart import Dot, Line, LineChart, draw_lines
from service.dashboard.login import FormTexts, SameOriginForm
from service.dashboard.rendering import render_page
from service.deps import AppStateDep, ReadSession, WriteSession
from service.presenters.comparisons import comparison_view, front_names
from service.routes import comparisons as routes
from service.routes.jobs import predict_job
from service.schemas.base import parse_request
from service.schemas.comparisons import BottleneckView, ComparisonView, MachineRow, RenameComparison, SpreadView

router = APIRouter(dependencies=[Depends(require_key_or_session), OwnerCheck])

_COLOURS = 8
_SECONDS_PER_HOUR = 3600


def draw_charts(session: Session, comparison: Comparison, found: ComparisonView) -> list[LineChart]:
    """Draw the metric against time and against dollars, one line for each job, and dollars against time.

    Points are of machine types: medians over their jobs.
    """
    jobs = comparisons.jobs_of(session, comparison.id)
    types = dict.fromkeys([job.machine_type for job in jobs] or [row.machine_type for row in found.rows])
    colours = {kind: at % _COLOURS for at, kind in enumerate(types)}
    by_time, by_cost = _lines(comparisons.learning_curves(session, comparison, jobs), jobs, colours)
    dots = partial(_dots, found.rows, colours)
    drawn = [
        draw_lines(
            f"{found.metric} by running time",
            by_time,
            format_duration,
            dots=dots(
                "on_metric_time_front",
                lambda row: (_median(row.seconds), _median(row.final)),
                lambda x, y: f"{y:.4g} in {format_duration(x)}",
            ),
            rising=found.goal == "max",
        ),
        draw_lines(
            f"{found.metric} by cost",
            by_cost,
            _format_cost,
            dots=dots(
                "on_metric_cost_front",
                lambda row: (row.cost, _median(row.final)),
                lambda x, y: f"{y:.4g} for {format_dollars(x)}",
            ),
            rising=found.goal == "max",
        ),
        _draw_costs(found, dots),
    ]
    return [chart for chart in drawn if chart is not None]


def _lines(
    curves: Mapping[str, Sequence[tuple[float, float]]], jobs: Sequence[Job], colours: Mapping[str, int]
) -> tuple[list[Line], list[Line]]:
    """Return the curves by time, and by dollars."""
    by_time, by_cost = [], []
    for job in jobs:
        if job.id in curves:
            colour, price = colours[job.machine_type], job.price_per_hour / _SECONDS_PER_HOUR
            by_time.append(Line(job.machine_type, colour, curves[job.id]))
            by_cost.append(Line(job.machine_type, colour, [(x * price, y) for x, y in curves[job.id]]))
    return by_time, by_cost


def _draw_costs(found: ComparisonView, dots: Callable[..., list[Dot]]) -> LineChart | None:
    until = "" if found.target is None else f" to {found.target:g}"

    def figures(row: MachineRow) -> tuple[float | None, float | None]:
        if found.target is None:
            return _median(row.seconds), row.cost
        return _median(row.seconds_to_target), row.cost_to_target

    return draw_lines(
        f"Cost{until} by running time{until}",
        [],
        format_duration,
        dots=dots("on_time_cost_front", figures, lambda x, y: f"{format_duration(x)} for {format_dollars(y)}"),
        format_y=_format_cost,
        rising=False,
    )


def _dots(
    rows: Sequence[MachineRow],
    colours: Mapping[str, int],
    front: str,
    figures: Callable[[MachineRow], tuple[float | None, float | None]],
    text: Callable[[float, float], str],
) -> list[Dot]:
    """Return the points of the machine types that were judged for a front, which is named by its field of a row."""
    dots = []
    for row in rows:
        x, y = figures(row)
        judged = getattr(row, front)
        if x is not None and y is not None and judged is not None:
            name = "Pareto front of simulated machines" if row.simulated else "Pareto front"
            dots.append(Dot(row.title, colours[row.machine_type], x, y, text(x, y), name if judged else None))
    return dots


def _median(spread: SpreadView | None) -> float | None:
    return None if spread is None else spread.median


def _format_cost(amount: float) -> str:
    """Format a mark of the cost's axis exactly; marks of short jobs are fractions of a cent."""
    return "$" + f"{amount:,.8f}".rstrip("0").rstrip(".")


@router.get("/ui/comparisons", dependencies=[SearchSlot])
def show_comparisons(
    session: ReadSession, app_state: AppStateDep, caller: PageCaller, after: str | None = None
) -> Response:
    found = routes.list_comparisons(session, app_state, after=after)
    return render_page("comparisons/list.html", caller=caller, found=found, after=after)


@router.get("/ui/comparisons/{comparison_id}", dependencies=[SearchSlot])
def show_comparison(session: ReadSession, app_state: AppStateDep, caller: PageCaller, comparison_id: str) -> Response:
    """Show a comparison: its table, the differences between its jobs, and their learning curves."""
    comparison = comparisons.get(session, comparison_id)
    found = comparison_view(session, app_state, comparison)
    return render_page(
        "comparisons/comparison.html",
        caller=caller,
        found=found,
        all_rows=[
            *((row, None) for row in found.rows),
            *((row, each.comparison_id) for each in found.same_program for row in each.rows),
        ],
        fronts=front_names(found.metric),
        judgements=_judgements(found.rows),
        charts=draw_charts(session, comparison, found),
    )


@router.post("/ui/comparisons/{comparison_id}/rename", dependencies=[SameOriginForm])
def rename_comparison(
    session: WriteSession, app_state: AppStateDep, caller: PageCaller, comparison_id: str, texts: FormTexts
) -> Response:
    named = parse_request(RenameComparison, {"name": texts.get("name")})
    routes.rename_comparison(app_state, caller, comparison_id, named, session)
    return RedirectResponse(f"/ui/comparisons/{quote(comparison_id)}", 303)


@router.post("/ui/comparisons/{comparison_id}/delete", dependencies=[SameOriginForm])
def delete_comparison(session: WriteSession, caller: PageCaller, comparison_id: str) -> Response:
    routes.delete_comparison(session, caller, comparison_id)
    return RedirectResponse("/ui/comparisons", 303)


@router.get("/ui/jobs/{job_id}/prediction", dependencies=[SearchSlot])
def show_prediction(
    session: ReadSession,
    app_state: AppStateDep,
    caller: PageCaller,
    job_id: str,
    precision: Literal["float32", "mixed"] | None = None,
) -> Response:
    """Show what bounds a job, and estimates of it on all machine types."""
    job = queries.get(session, job_id)
    found = predict_job(session, app_state, job_id, precision=precision)
    name = job.shown_name
    return render_page("comparisons/prediction.html", caller=caller, found=found, name=name, precision=precision)


def _judgements(rows: Sequence[MachineRow]) -> list[tuple[BottleneckView, list[MachineRow]]]:
    found: list[tuple[BottleneckView, list[MachineRow]]] = []
    for row in rows:
        if row.bottleneck is None:
            continue
        same = next((of for judgement, of in found if judgement == row.bottleneck), None)
        if same is None:
            found.append((row.bottleneck, [row]))
        else:
            same.append(row)
    return found
