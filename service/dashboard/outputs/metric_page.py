"""The page of a job's metrics: charts drawn in the browser, and for one without scripts, a table."""

from typing import Annotated

from fastapi import Depends, Query
from fastapi.responses import Response

from service.auth.authentication import PageCaller, require_key_or_session
from service.dashboard.job.header import read_header, render_job_page
from service.deps import AppStateDep, ReadSession
from service.http.routing import Router
from service.schemas.outputs import AttemptNumber

router = Router(dependencies=[Depends(require_key_or_session)])

_PLAIN_POINTS = 100


@router.get("/ui/jobs/{job_id}/metrics")
def show_metrics(
    session: ReadSession,
    app_state: AppStateDep,
    caller: PageCaller,
    job_id: str,
    attempt: AttemptNumber = None,
    part: Annotated[str, Query(description="`live`: without the parts for browsers without scripts")] = "",
) -> Response:
    header = read_header(session, app_state, caller, job_id, attempt)
    metrics_read = None
    if part != "live":
        metrics_read = app_state.metrics.get(session, header.row, None, _PLAIN_POINTS, attempt=header.attempt)
    return render_job_page(
        "metrics/page.html",
        app_state,
        caller,
        header,
        tab="metrics",
        series=metrics_read.summary if metrics_read else None,
    )
