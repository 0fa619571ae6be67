"""The pages of what jobs are created from: schedules and sweeps."""

from typing import Literal

from fastapi import Depends
from fastapi.responses import RedirectResponse, Response
from sqlalchemy.orm import Session

from core.db.models.schedules import Schedule
from core.db.models.sweeps import Sweep
from core.jobs.templates import schedules, templates
from core.jobs.templates.sweeps import sweeps
from service.app_state import AppState
from service.auth.authentication import PageCaller, Principal, SearchSlot, require_key_or_session
from service.auth.ownership import OwnerCheck, changeable
from service.dashboard.login import SameOriginForm
from service.dashboard.rendering import render_page, runs_url
from service.deps import AppStateDep, ReadSession, RequestId, WriteSession
from service.http.routing import Router
from service.presenters.schedules import schedule_view, schedule_views
from service.presenters.sweeps import sweep_views
from service.schemas.schedules import SchedulesPage
from service.schemas.sweeps import SweepsPage
from service.submission import schedules as submission

router = Router(dependencies=[Depends(require_key_or_session), OwnerCheck])

_PAGE = 50
_SCHEDULE_CHANGES = {"suspend": schedules.suspend, "resume": schedules.resume, "delete": schedules.delete}
_SWEEP_CHANGES = {"pause": sweeps.pause, "resume": sweeps.resume, "stop": sweeps.stop, "delete": sweeps.delete}


@router.get("/ui/schedules", dependencies=[SearchSlot])
def show_schedules(
    session: ReadSession, app_state: AppStateDep, caller: PageCaller, after: str | None = None
) -> Response:
    shown, following = templates.page(session, Schedule, limit=_PAGE, after=after)
    page = SchedulesPage(schedules=schedule_views(session, app_state, shown), next=following)
    return _render(session, app_state, caller, page, after)


@router.get("/ui/schedules/{schedule_id}")
def show_schedule(session: ReadSession, app_state: AppStateDep, caller: PageCaller, schedule_id: str) -> Response:
    page = SchedulesPage(schedules=[schedule_view(session, app_state, schedules.get(session, schedule_id))], next=None)
    return _render(session, app_state, caller, page, schedule_id)


def _render(
    session: Session, app_state: AppState, caller: Principal, page: SchedulesPage, after: str | None
) -> Response:
    owned = ((schedule.owner_key, schedule.project_id) for schedule in page.schedules)
    own_pairs = changeable(session, app_state, caller.id, owned)
    return render_page("lists/schedules.html", caller=caller, found=page, after=after, own=own_pairs)


@router.post("/ui/schedules/{schedule_id}/trigger", dependencies=[SameOriginForm])
def trigger_schedule(app_state: AppStateDep, caller: PageCaller, request_id: RequestId, schedule_id: str) -> Response:
    """Create a job of a schedule now."""
    app_state.limits.submissions.acquire(caller.id)
    inserted = submission.trigger(app_state, schedule_id, request_id)
    return RedirectResponse(f"/ui/jobs/{inserted.job.id}", 303)


@router.post("/ui/schedules/{schedule_id}/{action}", dependencies=[SameOriginForm])
def change_schedule(
    session: WriteSession, _caller: PageCaller, schedule_id: str, action: Literal["suspend", "resume", "delete"]
) -> Response:
    _SCHEDULE_CHANGES[action](session, schedule_id)
    return RedirectResponse("/ui/schedules", 303)


@router.get("/ui/sweeps", dependencies=[SearchSlot])
def show_sweeps(session: ReadSession, app_state: AppStateDep, caller: PageCaller, after: str | None = None) -> Response:
    shown, following = templates.page(session, Sweep, limit=_PAGE, after=after)
    page = SweepsPage(sweeps=sweep_views(session, app_state, shown), next=following)
    return render_page("sweeps/list.html", caller=caller, found=page, after=after)


@router.get("/ui/sweeps/{sweep_id}")
def show_sweep(session: ReadSession, _caller: PageCaller, sweep_id: str) -> Response:
    return RedirectResponse(runs_url(q=f"sweep:{sweeps.get(session, sweep_id).id}"), 307)


@router.post("/ui/sweeps/{sweep_id}/{action}", dependencies=[SameOriginForm])
def change_sweep(
    session: WriteSession, _caller: PageCaller, sweep_id: str, action: Literal["pause", "resume", "stop", "delete"]
) -> Response:
    _SWEEP_CHANGES[action](session, sweep_id)
    return RedirectResponse("/ui/sweeps" if action == "delete" else runs_url(q=f"sweep:{sweep_id}"), 303)
