"""The pages of what jobs are created from: schedules and sweeps."""

from typing import Literal
from zoneinfo import ZoneInfo

from fastapi import Depends
from fastapi.responses import RedirectResponse, Response
from sqlalchemy import select

from core.db.models.jobs import Job
from core.db.models.schedules import Schedule
from core.db.models.sweeps import Sweep
from core.jobs import queries
from core.jobs.queries import JobFilter
from core.jobs.templates import schedules
from core.jobs.templates.sweeps import sweeps
from service.auth.authentication import PageCaller, SearchSlot, require_key_or_session
from service.auth.ownership import OwnerCheck, changeable
from service.dashboard.lists.numbered_pages import RequestedPage, read_page
from service.dashboard.login import SameOriginForm
from service.dashboard.rendering import render_page, runs_url
from service.deps import AppStateDep, ReadSession, RequestId, WriteSession
from service.http.routing import Router
from service.presenters.jobs import job_views
from service.presenters.outputs.explanations import explanation_of
from service.presenters.schedules import schedule_view, schedule_views
from service.presenters.sweeps import sweep_views
from service.submission import schedules as submission

router = Router(dependencies=[Depends(require_key_or_session), OwnerCheck])

_PAGE = 50
_SHOWN_RUNS = 30
_SCHEDULE_CHANGES = {"suspend": schedules.suspend, "resume": schedules.resume, "delete": schedules.delete}
_SWEEP_CHANGES = {"pause": sweeps.pause, "resume": sweeps.resume, "stop": sweeps.stop, "delete": sweeps.delete}


@router.get("/ui/schedules", dependencies=[SearchSlot])
def show_schedules(
    session: ReadSession, app_state: AppStateDep, caller: PageCaller, requested: RequestedPage
) -> Response:
    page = read_page(session, select(Schedule), schedules.orders(), requested, _PAGE)
    views = schedule_views(session, app_state, page.rows)
    return render_page("lists/schedules.html", caller=caller, page=page, schedules=views)


@router.get("/ui/schedules/{schedule_id}", dependencies=[SearchSlot])
def show_schedule(session: ReadSession, app_state: AppStateDep, caller: PageCaller, schedule_id: str) -> Response:
    """Show a schedule with its last runs, the message of the last failure, its next times and options."""
    view = schedule_view(session, app_state, schedules.get(session, schedule_id))
    page = queries.page(session, JobFilter(conditions=[Job.schedule_id == schedule_id]), limit=_SHOWN_RUNS)
    runs = job_views(session, app_state, page.jobs)
    failed = next((job for job in runs if job.state in {"Failed", "Error"}), None)
    return render_page(
        "lists/schedule.html",
        caller=caller,
        schedule=view,
        local_times=[at.astimezone(ZoneInfo(view.timezone)) for at in view.next_times],
        runs=runs[::-1],
        failed=failed,
        cause=failed and explanation_of(app_state.logs, failed).evidence,
        may_change=changeable(session, app_state, caller.id, [(view.owner_key, view.project_id)]),
    )


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
    return RedirectResponse("/ui/schedules" if action == "delete" else f"/ui/schedules/{schedule_id}", 303)


@router.get("/ui/sweeps", dependencies=[SearchSlot])
def show_sweeps(session: ReadSession, app_state: AppStateDep, caller: PageCaller, requested: RequestedPage) -> Response:
    page = read_page(session, select(Sweep), sweeps.orders(session), requested, _PAGE)
    views = sweep_views(session, app_state, page.rows)
    return render_page("lists/sets.html", caller=caller, section="sweeps", page=page, sets=views)


@router.get("/ui/sweeps/{sweep_id}")
def show_sweep(session: ReadSession, _caller: PageCaller, sweep_id: str) -> Response:
    return RedirectResponse(runs_url(q=f"sweep:{sweeps.get(session, sweep_id).id}"), 307)


@router.post("/ui/sweeps/{sweep_id}/{action}", dependencies=[SameOriginForm])
def change_sweep(
    session: WriteSession, _caller: PageCaller, sweep_id: str, action: Literal["pause", "resume", "stop", "delete"]
) -> Response:
    _SWEEP_CHANGES[action](session, sweep_id)
    return RedirectResponse("/ui/sweeps" if action == "delete" else runs_url(q=f"sweep:{sweep_id}"), 303)
