from typing import Literal

from fastapi import Depends
from fastapi.responses import RedirectResponse, Response

from core.db.models.sweeps import Sweep
from core.jobs.templates import templates
from core.jobs.templates.sweeps import sweeps
from service.auth.authentication import PageCaller, SearchSlot, require_key_or_session
from service.auth.ownership import OwnerCheck
from service.dashboard.login import SameOriginForm
from service.dashboard.rendering import render_page, runs_url
from service.deps import AppStateDep, ReadSession, WriteSession
from service.http.routing import Router
from service.presenters.sweeps import sweep_views
from service.schemas.sweeps import SweepsPage

router = Router(dependencies=[Depends(require_key_or_session), OwnerCheck])

_PAGE = 50
_CHANGES = {"pause": sweeps.pause, "resume": sweeps.resume, "stop": sweeps.stop, "delete": sweeps.delete}


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
    _CHANGES[action](session, sweep_id)
    return RedirectResponse("/ui/sweeps" if action == "delete" else runs_url(q=f"sweep:{sweep_id}"), 303)
