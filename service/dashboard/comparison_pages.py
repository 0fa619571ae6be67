from collections.abc import Sequence
from typing import Literal
from urllib.parse import quote

from fastapi import APIRouter, Depends
from fastapi.responses import RedirectResponse, Response

from core.comparison import comparisons
from core.jobs import queries
from service.auth.authentication import PageCaller, SearchSlot, require_key_or_session
from service.auth.ownership import OwnerCheck
from service.dashboard.comparison_charts import draw_charts
from service.dashboard.login import FormTexts, SameOriginForm
from service.dashboard.rendering import render_page
from service.deps import AppStateDep, ReadSession, WriteSession
from service.presenters.comparisons import comparison_view, front_names
from service.routes import comparisons as routes
from service.routes.jobs import predict_job
from service.schemas.base import parse_request
from service.schemas.comparisons import BottleneckView, MachineRow, RenameComparison

router = APIRouter(dependencies=[Depends(require_key_or_session), OwnerCheck])


@router.get("/ui/comparisons")
def show_comparisons(
    session: ReadSession, app_state: AppStateDep, caller: PageCaller, after: str | None = None
) -> Response:
    found = routes.list_comparisons(session, app_state, after=after)
    return render_page("comparisons.html", caller=caller, found=found, after=after)


@router.get("/ui/comparisons/{comparison_id}", dependencies=[SearchSlot])
def show_comparison(session: ReadSession, app_state: AppStateDep, caller: PageCaller, comparison_id: str) -> Response:
    """Show a comparison: its table, the differences between its jobs, and their learning curves."""
    comparison = comparisons.get(session, comparison_id)
    found = comparison_view(session, app_state, comparison)
    return render_page(
        "comparison.html",
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
    return render_page("prediction.html", caller=caller, found=found, name=name, precision=precision)


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
