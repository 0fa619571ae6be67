"""A terminal in a running job: its page, and the WebSocket that the page opens with the browser's session."""

from urllib.parse import urlsplit

from fastapi import Depends, WebSocket
from fastapi.responses import Response
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection

from service.auth.authentication import PageCaller, require_key_or_session
from service.auth.ownership import OwnerCheck
from service.dashboard.job.header import read_header, render_job_page
from service.dashboard.rendering import PAGE_HEADERS
from service.deps import AppStateDep, ReadSession
from service.http.routing import Router
from service.routes.exec_sessions import run_in_job

_POLICY = PAGE_HEADERS["Content-Security-Policy"].replace("style-src 'self'", "style-src 'self' 'unsafe-inline'")
"""xterm.js writes a style sheet for the size of its letters and its colours."""


async def require_own_page(connection: HTTPConnection, app_state: AppStateDep) -> None:
    """Refuse a WebSocket that no page of this service opened: browsers send cookies with those of other sites, too."""
    ours = {connection.headers.get("host", ""), urlsplit(app_state.settings.public_url).netloc} - {""}
    if urlsplit(connection.headers.get("origin", "")).netloc not in ours:
        raise HTTPException(403, "The terminal was not opened by a page of this service.")


router = Router(prefix="/ui/jobs/{job_id}/terminal", dependencies=[Depends(require_key_or_session), OwnerCheck])


@router.get("")
def show_terminal(session: ReadSession, app_state: AppStateDep, caller: PageCaller, job_id: str) -> Response:
    header = read_header(session, app_state, caller, job_id, None)
    page = render_job_page("job/terminal.html", app_state, caller, header, tab="terminal")
    page.headers["Content-Security-Policy"] = _POLICY
    return page


@router.websocket("", dependencies=[Depends(require_own_page)])
async def open_terminal(websocket: WebSocket, app_state: AppStateDep, caller: PageCaller, job_id: str) -> None:
    await run_in_job(websocket, app_state, caller, job_id)
