"""The page of a terminal in a running job. It opens the WebSocket `/jobs/{job_id}/terminal`."""

from fastapi import Depends
from fastapi.responses import Response

from service.auth.authentication import PageCaller, require_key_or_session
from service.dashboard.job.header import read_header, render_job_page
from service.dashboard.rendering import PAGE_HEADERS
from service.deps import AppStateDep, ReadSession
from service.http.routing import Router

_POLICY = PAGE_HEADERS["Content-Security-Policy"].replace("style-src 'self'", "style-src 'self' 'unsafe-inline'")
"""xterm.js writes a style sheet for the size of its letters and its colours."""

router = Router(dependencies=[Depends(require_key_or_session)])


@router.get("/ui/jobs/{job_id}/terminal")
def show_terminal(session: ReadSession, app_state: AppStateDep, caller: PageCaller, job_id: str) -> Response:
    header = read_header(session, app_state, caller, job_id, None)
    page = render_job_page("job/terminal.html", app_state, caller, header, tab="terminal")
    page.headers["Content-Security-Policy"] = _POLICY
    return page
