from typing import Annotated

from fastapi import Depends, Path, Query, Response

from core.db.models.sweeps import Sweep
from core.jobs.templates import templates
from core.jobs.templates.sweeps import sweeps
from core.jobs.templates.sweeps.plan import MAX_TRIALS
from service.app_state import AppState
from service.auth.authentication import Caller, SearchSlot
from service.deps import AppStateDep, ReadSession, WriteSession
from service.http.json_body import json_body_schema, parse_json_body
from service.http.routing import api_router
from service.presenters.sweeps import sweep_details, sweep_views
from service.routes.jobs import NoQuery, SentSubmission, create_from_jobs, creation_responses, submission_schema
from service.schemas.sweeps import (
    ReportTrial,
    RequestedTrial,
    RequestTrial,
    SubmitSweep,
    SweepDetails,
    SweepsPage,
    TrialView,
)
from service.submission import sweeps as submission
from service.submission import trials

router = api_router(prefix="/sweeps", tags=["sweeps"])


@router.post(
    "", status_code=201, responses=creation_responses(SweepDetails), openapi_extra=submission_schema(SubmitSweep)
)
async def submit_sweep(
    response: Response, app_state: AppStateDep, sent: SentSubmission, _query: NoQuery
) -> SweepDetails:
    """Create a sweep of a job, as JSON or as a form with an archive in `workspace`."""
    sweep_id, created = await create_from_jobs(app_state, sent, SubmitSweep, submission.create)
    response.status_code = 201 if created else 200
    return await app_state.lanes.reading.run(_show, app_state, sweep_id)


def _show(app_state: AppState, sweep_id: str) -> SweepDetails:
    with app_state.database.read() as session:
        return sweep_details(session, app_state, sweeps.get(session, sweep_id))


@router.get("", dependencies=[SearchSlot])
def list_sweeps(
    session: ReadSession,
    app_state: AppStateDep,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
    after: Annotated[str | None, Query(description="id of the last sweep on the previous page")] = None,
) -> SweepsPage:
    """List sweeps, newest first."""
    shown, following = templates.page(session, Sweep, limit=limit, after=after)
    return SweepsPage(sweeps=sweep_views(session, app_state, shown), next=following)


@router.get("/{sweep_id}")
def show_sweep(session: ReadSession, app_state: AppStateDep, sweep_id: str) -> SweepDetails:
    """Return one sweep with its trials."""
    return sweep_details(session, app_state, sweeps.get(session, sweep_id))


@router.post("/{sweep_id}/trials", openapi_extra=json_body_schema(RequestTrial))
def request_trial(
    app_state: AppStateDep, sweep_id: str, request: Annotated[RequestTrial, Depends(parse_json_body(RequestTrial))]
) -> RequestedTrial:
    """Ask for a trial that the caller evaluates, who reports its values and its end."""
    return trials.request(app_state, sweep_id, request.key)


@router.post("/{sweep_id}/trials/{number}", openapi_extra=json_body_schema(ReportTrial))
def report_trial(
    app_state: AppStateDep,
    sweep_id: str,
    number: Annotated[int, Path(ge=0, lt=MAX_TRIALS)],
    request: Annotated[ReportTrial, Depends(parse_json_body(ReportTrial))],
) -> TrialView:
    """Report values of a trial that was asked for, or its end; the answer says whether it is to stop."""
    return trials.report(app_state, sweep_id, number, request)


@router.post("/{sweep_id}/pause")
def pause_sweep(session: WriteSession, app_state: AppStateDep, _caller: Caller, sweep_id: str) -> SweepDetails:
    """Let a sweep begin no more trials; those that run go on."""
    return sweep_details(session, app_state, sweeps.pause(session, sweep_id))


@router.post("/{sweep_id}/resume")
def resume_sweep(session: WriteSession, app_state: AppStateDep, _caller: Caller, sweep_id: str) -> SweepDetails:
    """Let a sweep that is paused or stopped go on."""
    return sweep_details(session, app_state, sweeps.resume(session, sweep_id))


@router.post("/{sweep_id}/stop")
def stop_sweep(session: WriteSession, app_state: AppStateDep, _caller: Caller, sweep_id: str) -> SweepDetails:
    """End a sweep: begin no more trials, and stop those that run."""
    return sweep_details(session, app_state, sweeps.stop(session, sweep_id))


@router.delete("/{sweep_id}", status_code=204)
def delete_sweep(session: WriteSession, _caller: Caller, sweep_id: str) -> None:
    """Delete a sweep; its jobs stay, and those that run go on."""
    sweeps.delete(session, sweep_id)
