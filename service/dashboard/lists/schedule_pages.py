from typing import Literal

from fastapi import Depends
from fastapi.responses import RedirectResponse, Response
from sqlalchemy.orm import Session

from core.jobs.templates import schedules
from service.app_state import AppState
from service.auth.authentication import PageCaller, Principal, SearchSlot, require_key_or_session
from service.auth.ownership import OwnerCheck, changeable_owners
from service.dashboard.login import SameOriginForm
from service.dashboard.rendering import render_page
from service.deps import AppStateDep, ReadSession, RequestId, WriteSession
from service.http.routing import Router
from service.routes.templates import schedules as routes
from service.schemas.schedules import SchedulesPage

router = Router(dependencies=[Depends(require_key_or_session), OwnerCheck])

_CHANGES = {"suspend": schedules.suspend, "resume": schedules.resume, "delete": schedules.delete}


@router.get("/ui/schedules", dependencies=[SearchSlot])
def show_schedules(
    session: ReadSession, app_state: AppStateDep, caller: PageCaller, after: str | None = None
) -> Response:
    return _render(session, app_state, caller, routes.list_schedules(session, app_state, after=after), after)


@router.get("/ui/schedules/{schedule_id}")
def show_schedule(session: ReadSession, app_state: AppStateDep, caller: PageCaller, schedule_id: str) -> Response:
    found = SchedulesPage(schedules=[routes.show_schedule(session, app_state, schedule_id)], next=None)
    return _render(session, app_state, caller, found, schedule_id)


def _render(
    session: Session, app_state: AppState, caller: Principal, found: SchedulesPage, after: str | None
) -> Response:
    owners = changeable_owners(session, app_state, caller.id, [one.owner_key for one in found.schedules])
    return render_page("lists/schedules.html", caller=caller, found=found, after=after, own=owners)


@router.post("/ui/schedules/{schedule_id}/trigger", dependencies=[SameOriginForm])
def trigger_schedule(app_state: AppStateDep, caller: PageCaller, request_id: RequestId, schedule_id: str) -> Response:
    """Create a job of a schedule now."""
    job = routes.trigger_schedule(app_state, caller, request_id, schedule_id)
    return RedirectResponse(f"/ui/jobs/{job.id}", 303)


@router.post("/ui/schedules/{schedule_id}/{action}", dependencies=[SameOriginForm])
def change_schedule(
    session: WriteSession, _caller: PageCaller, schedule_id: str, action: Literal["suspend", "resume", "delete"]
) -> Response:
    _CHANGES[action](session, schedule_id)
    return RedirectResponse("/ui/schedules", 303)
