"""The list of jobs, the page of one job, and the forms on it."""

import secrets
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated

from fastapi import APIRouter, Depends, Request
from fastapi.responses import RedirectResponse, Response
from sqlalchemy.orm import Session

from core.catalogue.backends import capabilities_of
from core.db.models.jobs import Job
from core.jobs import cloud_resources, queries
from service.auth.authentication import PageCaller, require_key_or_session
from service.dashboard.login import FORM_FIELDS, HOME, SameOriginForm
from service.dashboard.rendering import job_url, render_page
from service.dashboard.timeline import phase_spans
from service.deps import AppState, AppStateDep, ReadSession, RequestId, WriteSession
from service.presenters.jobs import PUBLIC_STATES, job_view
from service.routes import artifacts, jobs, logs, projects
from service.schemas.job_list import ListJobs
from service.schemas.jobs import EventView, LogPage
from service.submission import create
from service.submission.create import RequestOrigin

router = APIRouter(dependencies=[Depends(require_key_or_session)])

PAGE_JOBS = 50
LIVE = frozenset({"Pending", "Running"})
"""States in which the page of a job refreshes itself."""

_LOG_LINES_WITHOUT_SCRIPT = 500
CHART_POINTS = 400
"""Number of points in a chart, the same as in charts.js."""


@dataclass(frozen=True, slots=True)
class AttemptRow:
    """One attempt of a job, as the page shows it."""

    number: int
    worker: str
    claimed_at: datetime
    seconds: float | None
    exit_code: int | None
    message: str | None


async def _clone_key(request: Request, _caller: PageCaller) -> str | None:
    # Not a parameter with FastAPI's `Form`: the form would be read before authentication.
    key = (await request.form(max_files=0, max_fields=FORM_FIELDS)).get("key")
    return key if isinstance(key, str) else None


CloneKey = Annotated[str | None, Depends(_clone_key)]


@router.get("/ui/jobs")
def show_jobs(
    session: ReadSession,
    app_state: AppStateDep,
    caller: PageCaller,
    state: str = "",
    project: str = "",
    after: str = "",
) -> Response:
    """Show the list of jobs, newest first."""
    wanted = ListJobs(state=state or None, project=project or None, limit=PAGE_JOBS, after=after or None)
    found = jobs.list_jobs(session, app_state, caller, wanted)
    return render_page(
        "jobs.html",
        caller=caller,
        found=found,
        state=state,
        project=project,
        after=after,
        states=PUBLIC_STATES,
        projects=projects.list_projects(session, app_state).projects,
        # The page of a service without jobs also refreshes, to show the first one.
        live=any(job.state in LIVE for job in found.jobs) or not (found.jobs or state or project or after),
        public_url=app_state.settings.public_url,
        tpus=len(cloud_resources.list_open(session))
        if capabilities_of(app_state.settings.backend_of("tpu")).billed
        else None,
    )


@router.get("/ui/jobs/{job_id}")
def show_job(session: ReadSession, app_state: AppStateDep, caller: PageCaller, job_id: str, part: str = "") -> Response:
    """Show one job; `part=live` leaves out the parts for browsers without scripts."""
    row = queries.get(session, job_id)
    job = job_view(session, app_state, row)
    events = jobs.list_events(session, job_id).events
    whole = part != "live"
    return render_page(
        "job.html",
        caller=caller,
        job=job,
        live=job.state in LIVE,
        events=events,
        phase_spans=phase_spans(events, datetime.now(UTC)),
        attempts=_attempt_rows(session, row, events),
        gone={removed.what: removed for removed in job.removed},
        outputs=artifacts.list_artifacts(session, app_state, job_id, limit=1),
        log=_read_last_lines(session, app_state, row) if whole else None,
        series=app_state.metrics.get(session, row, None, CHART_POINTS).summary if whole else None,
        clone_key=secrets.token_urlsafe(16),
    )


@router.post("/ui/jobs/{job_id}/stop", dependencies=[SameOriginForm])
def stop_job(session: WriteSession, app_state: AppStateDep, caller: PageCaller, job_id: str) -> Response:
    """Request that a job stop."""
    jobs.stop_job(session, app_state, caller, job_id)
    return _redirect_to_job(job_id)


@router.post("/ui/jobs/{job_id}/clone", dependencies=[SameOriginForm])
def clone_job(
    app_state: AppStateDep,
    caller: PageCaller,
    request_id: RequestId,
    job_id: str,
    key: CloneKey,
) -> Response:
    """Submit a job again; with the form's idempotency key, a double click creates only one job."""
    app_state.limits.submissions.acquire(caller.id)
    return _redirect_to_job(create.clone(app_state, RequestOrigin(caller.id, request_id, key), job_id).job.id)


@router.post("/ui/jobs/{job_id}/delete", dependencies=[SameOriginForm])
def delete_job(session: WriteSession, app_state: AppStateDep, caller: PageCaller, job_id: str) -> Response:
    """Delete a job."""
    jobs.delete_job(session, app_state, caller, job_id)
    return RedirectResponse(HOME, 303)


def _redirect_to_job(job_id: str) -> Response:
    return RedirectResponse(job_url(job_id), 303)


def _read_last_lines(session: Session, app_state: AppState, job: Job) -> LogPage:
    after = app_state.logs.reader(job.id).tail(_LOG_LINES_WITHOUT_SCRIPT, final=job.ended)
    return logs.read_log_page(session, app_state, job, after, _LOG_LINES_WITHOUT_SCRIPT)


def _attempt_rows(session: Session, job: Job, events: list[EventView]) -> list[AttemptRow]:
    reasons = {
        event.attempt: event.message for event in events if event.kind in {"ended", "finished"} and event.message
    }
    return [
        AttemptRow(
            number=row.attempt,
            worker=row.worker,
            claimed_at=row.claimed_at,
            seconds=(row.ended_at - row.started_at).total_seconds() if row.ended_at and row.started_at else None,
            exit_code=row.exit_code,
            message=reasons.get(row.attempt),
        )
        for row in queries.attempts(session, job.id)
    ]
