"""The page of a job's metrics: charts drawn in the browser, and for one without scripts, on the server."""

import json
from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query
from fastapi.responses import Response

from core.formatting import format_duration
from service.auth.authentication import PageCaller, require_key_or_session
from service.dashboard.job.header import read_header, render_job_page
from service.dashboard.line_chart import Line, LineChart, draw_lines
from service.deps import AppStateDep, ReadSession
from service.presenters.metrics_cache import JobMetricsResponse
from service.routes.artifacts import AttemptNumber

router = APIRouter(dependencies=[Depends(require_key_or_session)])

_PLAIN_POINTS = 100
_PLAIN_CHARTS = 24


@router.get("/ui/jobs/{job_id}/metrics")
def show_metrics(
    session: ReadSession,
    app_state: AppStateDep,
    caller: PageCaller,
    job_id: str,
    attempt: AttemptNumber = None,
    part: Annotated[str, Query(description="`live`: without the parts for browsers without scripts")] = "",
) -> Response:
    """Show the metrics of a job, or of one of its attempts."""
    header = read_header(session, app_state, caller, job_id, attempt)
    found = None
    if part != "live":
        found = app_state.metrics.get(session, header.row, None, _PLAIN_POINTS, attempt=header.attempt)
    return render_job_page(
        "metrics/page.html",
        app_state,
        caller,
        header,
        tab="metrics",
        series=found.summary if found else None,
        charts=_plain_charts(found) if found else [],
    )


def _plain_charts(found: JobMetricsResponse) -> list[LineChart]:
    """Draw the first metrics by step, or by running time if a point has no step."""
    drawn = [_plain_chart(series) for series in json.loads(found.body)["series"][:_PLAIN_CHARTS]]
    return [chart for chart in drawn if chart is not None]


def _plain_chart(series: dict[str, Any]) -> LineChart | None:
    points = [point for point in series["points"] if point["value"] is not None]
    if all(point["step"] is not None for point in points):
        line = [(point["step"], point["value"]) for point in points]
        return draw_lines(series["name"], [Line(series["name"], 0, line)], "{:.6g}".format)
    times = [datetime.fromisoformat(point["time"]).timestamp() for point in points]
    line = [(at - times[0], point["value"]) for at, point in zip(times, points, strict=True)]
    return draw_lines(series["name"], [Line(series["name"], 0, line)], format_duration)
