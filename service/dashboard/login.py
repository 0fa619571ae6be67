"""Signing in with an API key, and protection of forms against requests from other sites (CSRF)."""

import re
from functools import partial
from typing import Annotated, cast
from urllib.parse import urlsplit

from fastapi import APIRouter, Depends, Form, Query, Request
from fastapi.responses import RedirectResponse, Response
from sqlalchemy.orm import Session
from starlette.exceptions import HTTPException

from core.errors import Unauthorized
from core.security import one_time_tokens
from core.security.one_time_tokens import Purpose
from core.security.sessions import open_session
from service.auth.session_cookie import clear_session_cookie, session_token, set_session_cookie
from service.auth.sign_in_throttle import FailureBackoff
from service.dashboard.rendering import render_page
from service.deps import AppState, AppStateDep

FORM_FIELDS = 8
"""Largest number of fields in a form; no form has files."""

router = APIRouter(form_limits={"max_files": 0, "max_fields": FORM_FIELDS})

HOME = "/ui/jobs"

_PAGE_PATH = re.compile(r"/ui(?:/[^/\\\x00-\x20][^\\\x00-\x20]*)?\Z")
_MAX_KEY = 500


def wrong_key_backoff() -> FailureBackoff:
    """Return the delays of addresses that sent ten wrong keys, each less than a minute after the one before."""
    return FailureBackoff(free=10, first=60.0, longest=60.0, forgotten=60.0)


def require_same_origin_form(request: Request, app_state: AppStateDep) -> None:
    """Refuse a form that was not sent from one of the service's own pages.

    A browser states the origin in Sec-Fetch-Site, or in Origin over untrusted connections. A request with neither is
    refused: a cookie alone proves nothing.

    Raises:
        HTTPException: 403: the form is of another origin, or of an unknown one.
    """
    site = request.headers.get("sec-fetch-site")
    if site is None:
        ours = {request.headers.get("host", ""), urlsplit(app_state.settings.public_url).netloc}
        own = urlsplit(request.headers.get("origin", "")).netloc in ours - {""}
    else:
        own = site == "same-origin"
    if not own:
        raise HTTPException(403, "This form was not sent from a page of this service, so nothing was changed.")


SameOriginForm = Depends(require_same_origin_form)


def safe_redirect_target(wanted: str | None) -> str:
    """Return the page to open after signing in: the wanted one if it is of this service, else the start page."""
    return wanted if wanted and _PAGE_PATH.match(wanted) else HOME


@router.get("/")
def redirect_home() -> Response:
    """Redirect to the page of what runs now."""
    return RedirectResponse("/ui", 303)


@router.get("/ui/login", response_model=None)
def show_sign_in(
    app_state: AppStateDep,
    wanted: Annotated[str | None, Query(alias="next")] = None,
    ticket: str | None = None,
    ended: str | None = None,
) -> Response:
    """Show the sign-in form, or sign in with a one-time ticket."""
    target = safe_redirect_target(wanted)
    if ticket is None:
        problem = "Your session has ended. Sign in again." if ended else None
        return render_page("login.html", target=target, problem=problem)
    token = one_time_tokens.redeem(app_state.database, Purpose.TICKET, ticket, partial(_open_session, app_state))
    if token is None:
        problem = "This link was used already, or is older than ten minutes. Sign in with an API key."
        return render_page("login.html", 401, target=target, problem=problem)
    # Not a redirect: after a link on another site, the browser would not send the cookie with it.
    answer = render_page("continue.html", target=target)
    set_session_cookie(answer, token, app_state.settings)
    return answer


def _open_session(app_state: AppState, session: Session, key_id: str) -> str:
    return open_session(session, app_state.keys.get(key_id).id, app_state.settings.sign_in)


@router.post("/ui/login", response_model=None, dependencies=[SameOriginForm])
def sign_in(
    request: Request,
    app_state: AppStateDep,
    key: Annotated[str, Form(max_length=_MAX_KEY)] = "",
    wanted: Annotated[str, Form(alias="next")] = HOME,
) -> Response:
    """Open a session with an API key."""
    target = safe_redirect_target(wanted)
    wrong_keys = cast("FailureBackoff", request.app.state.wrong_keys)
    address = request.client.host if request.client else ""
    if wait := wrong_keys.wait_seconds(address):
        problem = f"Too many wrong keys. Try again in {wait:.0f} seconds."
        answer: Response = render_page("login.html", 429, target=target, problem=problem)
        answer.headers["Retry-After"] = f"{wait:.0f}"
        return answer
    try:
        known = app_state.keys.authenticate(key.strip())
    except Unauthorized as error:
        wrong_keys.record_failure(address)
        return render_page("login.html", 401, target=target, problem=error.message)
    answer = RedirectResponse(target, 303)
    set_session_cookie(answer, app_state.sessions.open(known.id), app_state.settings)
    return answer


@router.post("/ui/logout", dependencies=[SameOriginForm])
def sign_out(request: Request, app_state: AppStateDep) -> Response:
    """End the session of this browser."""
    token = session_token(request, app_state.settings)
    if token:
        app_state.sessions.end(token)
    answer = RedirectResponse("/ui/login", 303)
    clear_session_cookie(answer, app_state.settings)
    return answer
