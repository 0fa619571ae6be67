"""The page of one job, and the forms on it."""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated

from fastapi import APIRouter, Depends, Query
from fastapi.responses import RedirectResponse, Response
from pydantic import BaseModel, Field
from sqlalchemy.orm import Session

from core.db.models.jobs import Job
from core.jobs import queries
from core.storage.joblogs.reader import LogReader
from core.storage.joblogs.search import FoundLines
from service.auth.authentication import PageCaller, require_key_or_session
from service.auth.job_ownership import OwnerCheck
from service.dashboard.login import HOME, SameOriginForm
from service.dashboard.rendering import job_url, render_page
from service.dashboard.timeline import PhaseSpan, phase_spans
from service.deps import AppState, AppStateDep, ReadSession, WriteSession
from service.presenters.failure_line import failure_line
from service.presenters.jobs import job_view
from service.routes import artifacts, jobs, logs
from service.schemas.events import EventView
from service.schemas.jobs import MAX_LINE
from service.schemas.logs import LogPage
from service.tensorboard.availability import unavailable

router = APIRouter(dependencies=[Depends(require_key_or_session), OwnerCheck])

LIVE = frozenset({"Pending", "Running"})
"""States in which the page of a job refreshes itself."""

LOG_BYTES_IN_TAB = 4 * 1024 * 1024
"""Largest log that a page links to as one text; a browser may not survive a larger one."""

LOG_LINES_WITHOUT_SCRIPT = 500
_FOUND_LINES = 100
CHART_POINTS = 400
"""Number of points in a chart, the same as in job.html: one cached response serves both."""


@dataclass(frozen=True, slots=True)
class AttemptRow:
    """One attempt of a job, as the page shows it."""

    number: int
    worker: str
    claimed_at: datetime
    seconds: float | None
    exit_code: int | None
    message: str | None
    phase_spans: list[PhaseSpan]
    first_line: int | None


class JobPageQuery(BaseModel):
    """The part of a job's page to show: a place in its log, for browsers without scripts."""

    part: str = ""
    line: int | None = Field(None, ge=1, le=MAX_LINE, description="first line of the log to show; None: the last lines")
    find: str = Field("", max_length=200, description="text to find in the log")


@router.get("/ui/jobs/{job_id}")
def show_job(
    session: ReadSession,
    app_state: AppStateDep,
    caller: PageCaller,
    job_id: str,
    shown: Annotated[JobPageQuery, Query()],
) -> Response:
    """Show one job; `part=live` leaves out the parts for browsers without scripts."""
    row = queries.get(session, job_id)
    job = job_view(session, app_state, row)
    events = jobs.list_events(session, job_id).events
    whole = shown.part != "live"
    reader = app_state.logs.reader(row.id)
    return render_page(
        "job.html",
        caller=caller,
        job=job,
        live=job.state in LIVE,
        events=events,
        phase_spans=phase_spans(events, datetime.now(UTC)),
        attempts=_attempt_rows(session, reader, row, events),
        cause=failure_line(reader) if job.state == "Failed" else None,
        gone={removed.what: removed for removed in job.removed},
        outputs=artifacts.list_artifacts(session, app_state, job_id, limit=1),
        log=_read_lines(session, app_state, row, shown.line) if whole else None,
        find=shown.find,
        found=_find(reader, row, shown.find) if whole and shown.find.strip() else None,
        page_lines=LOG_LINES_WITHOUT_SCRIPT,
        series=app_state.metrics.get(session, row, None, CHART_POINTS).summary if whole else None,
        log_bytes=reader.size,
        log_bytes_in_tab=LOG_BYTES_IN_TAB,
        no_tensorboard=unavailable(app_state.settings),
    )


@router.post("/ui/jobs/{job_id}/stop", dependencies=[SameOriginForm])
def stop_job(session: WriteSession, app_state: AppStateDep, caller: PageCaller, job_id: str) -> Response:
    """Request that a job stop."""
    jobs.stop_job(session, app_state, caller, job_id)
    return _redirect_to_job(job_id)


@router.post("/ui/jobs/{job_id}/delete", dependencies=[SameOriginForm])
def delete_job(session: WriteSession, app_state: AppStateDep, caller: PageCaller, job_id: str) -> Response:
    """Delete a job."""
    jobs.delete_job(session, app_state, caller, job_id)
    return RedirectResponse(HOME, 303)


def _redirect_to_job(job_id: str) -> Response:
    return RedirectResponse(job_url(job_id), 303)


def _read_lines(session: Session, app_state: AppState, job: Job, line: int | None) -> LogPage:
    last = app_state.logs.reader(job.id).tail(LOG_LINES_WITHOUT_SCRIPT, final=job.ended)
    after = last if line is None else min(line - 1, last)
    return logs.read_log_page(session, app_state, job, after, LOG_LINES_WITHOUT_SCRIPT)


def _find(reader: LogReader, job: Job, text: str) -> FoundLines:
    return reader.search(
        text, after=0, limit=_FOUND_LINES, final=job.ended, match_case=False, seconds=logs.SEARCH_SECONDS
    )


def _attempt_rows(session: Session, reader: LogReader, job: Job, events: list[EventView]) -> list[AttemptRow]:
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
            phase_spans=phase_spans(events, datetime.now(UTC), row.attempt),
            first_line=reader.first_line(row.attempt),
        )
        for row in queries.attempts(session, job.id)
    ]
