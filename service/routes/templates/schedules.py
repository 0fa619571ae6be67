from typing import Annotated

from fastapi import Query, Response

from core.db.models.schedules import Schedule
from core.jobs.templates import schedules, templates
from service.app_state import AppState
from service.auth.authentication import Caller, SearchSlot
from service.deps import AppStateDep, ReadSession, RequestId, WriteSession
from service.http.routing import api_router
from service.presenters.schedules import schedule_view, schedule_views
from service.routes.jobs import FULL, NoQuery, SentSubmission, create_from_jobs, creation_responses, submission_schema
from service.schemas.jobs import JobView
from service.schemas.schedules import SchedulesPage, ScheduleView, SubmitSchedule
from service.submission import create
from service.submission import schedules as submission

router = api_router(prefix="/schedules", tags=["schedules"])


@router.post(
    "",
    status_code=201,
    responses=creation_responses(ScheduleView),
    openapi_extra=submission_schema(SubmitSchedule),
)
async def submit_schedule(
    response: Response, app_state: AppStateDep, sent: SentSubmission, _query: NoQuery
) -> ScheduleView:
    """Create a schedule of a job, as JSON or as a form with an archive in `workspace`."""
    schedule_id, created = await create_from_jobs(app_state, sent, SubmitSchedule, submission.create)
    response.status_code = 201 if created else 200
    return await app_state.lanes.reading.run(_show, app_state, schedule_id)


def _show(app_state: AppState, schedule_id: str) -> ScheduleView:
    with app_state.database.read() as session:
        return schedule_view(session, app_state, schedules.get(session, schedule_id))


@router.get("", dependencies=[SearchSlot])
def list_schedules(
    session: ReadSession,
    app_state: AppStateDep,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
    after: Annotated[str | None, Query(description="id of the last schedule on the previous page")] = None,
) -> SchedulesPage:
    """List schedules, newest first."""
    shown, following = templates.page(session, Schedule, limit=limit, after=after)
    return SchedulesPage(schedules=schedule_views(session, app_state, shown), next=following)


@router.get("/{schedule_id}")
def show_schedule(session: ReadSession, app_state: AppStateDep, schedule_id: str) -> ScheduleView:
    """Return one schedule."""
    return schedule_view(session, app_state, schedules.get(session, schedule_id))


@router.post("/{schedule_id}/suspend")
def suspend_schedule(session: WriteSession, app_state: AppStateDep, _caller: Caller, schedule_id: str) -> ScheduleView:
    """Let a schedule create no more jobs; those that it has created continue."""
    return schedule_view(session, app_state, schedules.suspend(session, schedule_id))


@router.post("/{schedule_id}/resume")
def resume_schedule(session: WriteSession, app_state: AppStateDep, _caller: Caller, schedule_id: str) -> ScheduleView:
    """Let a suspended schedule go on with its next time from now."""
    return schedule_view(session, app_state, schedules.resume(session, schedule_id))


@router.post("/{schedule_id}/trigger", status_code=201, responses=FULL)
def trigger_schedule(app_state: AppStateDep, caller: Caller, request_id: RequestId, schedule_id: str) -> JobView:
    """Create a job of a schedule now; its times stay as they are."""
    app_state.limits.submissions.acquire(caller.id)
    return create.present(app_state, submission.trigger(app_state, schedule_id, request_id))


@router.delete("/{schedule_id}", status_code=204)
def delete_schedule(session: WriteSession, _caller: Caller, schedule_id: str) -> None:
    """Delete a schedule; its jobs stay."""
    schedules.delete(session, schedule_id)
