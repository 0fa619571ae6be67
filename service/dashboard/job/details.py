"""The pages of a job's metrics, configuration and events, for each attempt, and of its difference from another job."""

from datetime import UTC, datetime
from typing import Annotated

from fastapi import Depends, Query
from fastapi.responses import Response

from core.jobs import queries
from service.auth.authentication import PageCaller, SearchSlot, require_key_or_session
from service.dashboard.job.attempts import attempt_rows
from service.dashboard.job.header import read_header, render_job_page
from service.dashboard.job.timeline import phase_spans
from service.dashboard.rendering import render_page
from service.deps import AppStateDep, ReadSession
from service.http.routing import Router
from service.presenters.job_diff import job_diff
from service.presenters.jobs import event_views, job_views
from service.schemas.outputs import AttemptNumber

_PLAIN_POINTS = 100  # of a metric, for browsers without scripts
router = Router(prefix="/ui/jobs/{job_id}", dependencies=[Depends(require_key_or_session)])


@router.get("/metrics")
def show_metrics(
    session: ReadSession,
    app_state: AppStateDep,
    caller: PageCaller,
    job_id: str,
    attempt: AttemptNumber = None,
    part: Annotated[str, Query(description="`live`: without the table for browsers without scripts")] = "",
) -> Response:
    header = read_header(session, app_state, caller, job_id, attempt)
    read = None if part == "live" else app_state.metrics.get(session, header.row, None, _PLAIN_POINTS, attempt=attempt)
    series = read.summary if read else None
    return render_job_page("metrics/page.html", app_state, caller, header, tab="metrics", series=series)


@router.get("/config")
def show_config(
    session: ReadSession, app_state: AppStateDep, caller: PageCaller, job_id: str, attempt: AttemptNumber = None
) -> Response:
    """Show a job's options, and the image and machine of an attempt."""
    header = read_header(session, app_state, caller, job_id, attempt)
    run = queries.attempt(session, job_id, header.number)
    return render_job_page("job/config.html", app_state, caller, header, tab="config", run=run)


@router.get("/events")
def show_events(
    session: ReadSession, app_state: AppStateDep, caller: PageCaller, job_id: str, attempt: AttemptNumber = None
) -> Response:
    """Show a job's attempts and what happened to them; of an earlier attempt, its own events only."""
    header = read_header(session, app_state, caller, job_id, attempt)
    events = event_views(session, header.row)
    shown = events if header.attempt is None else [event for event in events if event.attempt == header.attempt]
    return render_job_page(
        "job/events.html",
        app_state,
        caller,
        header,
        tab="events",
        events=shown,
        phase_spans=phase_spans(events, datetime.now(UTC), header.attempt),
        attempts=attempt_rows(session, app_state, header, events),
    )


@router.get("/diff", dependencies=[SearchSlot])
def show_diff(
    session: ReadSession,
    app_state: AppStateDep,
    caller: PageCaller,
    job_id: str,
    other: Annotated[str, Query(max_length=200)] = "",
) -> Response:
    """Show in which options and files two jobs differ."""
    compared = job_views(session, app_state, [queries.get(session, shown_id) for shown_id in (job_id, other or job_id)])
    diff = job_diff(compared[0], compared[1], app_state.workspaces)
    return render_page("job/diff.html", caller=caller, found=diff, jobs=compared, other=other)
