"""Signing in with an API key or a one-time ticket, and protection of forms against requests from other sites (CSRF)."""

import math
import re
from contextlib import suppress
from functools import partial
from http import HTTPStatus
from typing import Annotated, cast
from urllib.parse import urlsplit

from fastapi import Depends, Query, Request
from fastapi.responses import RedirectResponse, Response
from sqlalchemy.orm import Session
from starlette.datastructures import FormData
from starlette.exceptions import HTTPException

from core.db.models.credentials import ApiKey
from core.errors import SecretUnreadable, StoreUnavailable, Unauthorized
from core.security import identities, one_time_tokens
from core.security.actor import Unwritten, acting_address
from core.security.encryption import Vault
from core.security.one_time_tokens import Purpose
from core.security.sessions import open_session
from service.app_state import AppState
from service.auth.authentication import PageCaller
from service.auth.session_cookie import clear_session_cookie, session_token, set_session_cookie
from service.auth.sign_in_throttle import FailureBackoff
from service.dashboard.rendering import render_page
from service.deps import AppStateDep
from service.http.asgi_scope import client_network
from service.http.routing import Router, runs_in
from service.schemas.base import check_encoding, check_texts

FORM_FIELDS = 8  # largest number of fields in a form; no form has files

router = Router()

HOME = "/ui/jobs"

_PAGE_PATH = re.compile(r"/ui(?:/[^/\\\x00-\x20][^\\\x00-\x20]*)?\Z")
_OWN_SITES = {None, "none", "same-origin"}
"""`Sec-Fetch-Site` of a link that no other site gave: none is sent over untrusted connections."""


def wrong_key_backoff() -> FailureBackoff:
    """Return the delays of addresses that sent ten wrong keys, each less than a minute after the one before.

    Only wrong keys are delayed: nobody finds a right one by trial, and many people may share an address.
    """
    return FailureBackoff(free=10, first=60.0, longest=60.0, forgotten=60.0)


async def require_same_origin_form(request: Request, app_state: AppStateDep) -> None:
    """Refuse a form that was not sent from one of the service's own pages.

    A browser states the origin in Sec-Fetch-Site, or in Origin over untrusted connections. A request with neither is
    refused: a cookie alone proves nothing.
    """
    site = request.headers.get("sec-fetch-site")
    if site is None:
        ours = {request.headers.get("host", ""), urlsplit(app_state.settings.public_url).netloc}
        is_own = urlsplit(request.headers.get("origin", "")).netloc in ours - {""}
    else:
        is_own = site == "same-origin"
    if not is_own:
        raise HTTPException(403, "The form was not sent from this service, so nothing was changed.")


SameOriginForm = Depends(require_same_origin_form)


async def read_form(request: Request, *, max_fields: int = FORM_FIELDS) -> FormData:
    """Read a form without files. FastAPI's `Form` would read it before authentication."""
    check_encoding(await request.body(), "The form")
    form = await request.form(max_files=0, max_fields=max_fields)
    check_texts({name: value for name, value in form.multi_items() if isinstance(value, str)})
    return form


async def read_form_texts(request: Request) -> dict[str, str]:
    form = await read_form(request)
    return {name: value for name, value in form.items() if isinstance(value, str)}


async def _read_own_texts(request: Request, _caller: PageCaller) -> dict[str, str]:
    return {name: value.replace("\r\n", "\n") for name, value in (await read_form_texts(request)).items()}


FormTexts = Annotated[dict[str, str], Depends(_read_own_texts)]  # the fields of a form of somebody who is signed in


def safe_redirect_target(wanted: str | None) -> str:
    """Return the page to open after signing in: the wanted one if it is of this service, else the start page."""
    return wanted if wanted and _PAGE_PATH.match(wanted) else HOME


@router.get("/")
def redirect_home() -> Response:
    """Redirect to the page of what runs now."""
    return RedirectResponse("/ui", 303)


@router.get("/ui/login", response_model=None)
@runs_in(lambda lanes: lanes.urgent)
def show_sign_in(
    request: Request,
    app_state: AppStateDep,
    wanted: Annotated[str | None, Query(alias="next")] = None,
    ticket: str | None = None,
    ended: str | None = None,
) -> Response:
    """Show the sign-in form, or sign in with a one-time ticket; ask first if another site may have sent it."""
    target = safe_redirect_target(wanted)
    if ticket is None:
        problem = "Your session has ended. Sign in again." if ended else None
        return show_problem(app_state, target, problem, 200)
    key_id = one_time_tokens.subject(app_state.database, Purpose.TICKET, ticket)
    if key_id is not None:
        current = _current_key(request, app_state)
        is_foreign = request.headers.get("sec-fetch-site") not in _OWN_SITES
        if is_foreign or (current is not None and current.id != key_id):
            offered = app_state.keys.get(key_id)
            return render_page("sign_in/confirm.html", target=target, ticket=ticket, offered=offered, current=current)
    # Not a redirect: after a link on another site, the browser would not send the cookie with it.
    return _sign_in_with_ticket(request, app_state, ticket, target, render_page("sign_in/continue.html", target=target))


@router.post("/ui/login", response_model=None, dependencies=[SameOriginForm])
@runs_in(lambda lanes: lanes.urgent)
def sign_in(
    request: Request, app_state: AppStateDep, form: Annotated[dict[str, str], Depends(read_form_texts)]
) -> Response:
    """Open a session with an API key, or with a ticket that the user confirmed."""
    target = safe_redirect_target(form.get("next"))
    answer = RedirectResponse(target, 303)
    if ticket := form.get("ticket"):
        return _sign_in_with_ticket(request, app_state, ticket, target, answer)
    try:
        key = app_state.keys.authenticate(form.get("key", "").strip())
    except Unauthorized as error:
        return _wrong_key_page(request, app_state, target, error.message)
    app_state.limits.requests.acquire(key.id)
    start_session(request, app_state, app_state.sessions.open(key.id), answer)
    return answer


def show_problem(app_state: AppState, target: str, problem: str | None, status: int = 401) -> Response:
    """Show the sign-in page, with what went wrong."""
    if status == HTTPStatus.UNAUTHORIZED:
        refused = Unwritten("refused", "sign-in", "Unauthorized", address=acting_address())
        app_state.record.unwritten.append(refused)
    provider = app_state.provider.name
    return render_page("sign_in/login.html", status, target=target, problem=problem, provider=provider)


def _sign_in_with_ticket(request: Request, app_state: AppState, ticket: str, target: str, answer: Response) -> Response:
    """Return `answer` with the cookie of a new session, or the sign-in form if the ticket is not valid."""
    token = one_time_tokens.redeem(app_state.database, Purpose.TICKET, ticket, partial(_open_session, app_state))
    if token is None:
        problem = "This link was already used or is older than ten minutes. Sign in with an API key."
        return show_problem(app_state, target, problem)
    start_session(request, app_state, token, answer)
    return answer


def _open_session(app_state: AppState, session: Session, key_id: str) -> str:
    key = app_state.keys.get(key_id)
    app_state.limits.requests.acquire(key.id)
    return open_session(session, key.id, app_state.settings.sign_in)


def start_session(request: Request, app_state: AppState, token: str, answer: Response) -> None:
    """Set the cookie of a new session, and end the one that it replaces in this browser."""
    if replaced := session_token(request, app_state.settings):
        app_state.sessions.end(replaced)
    set_session_cookie(answer, token, app_state.settings)


def _current_key(request: Request, app_state: AppState) -> ApiKey | None:
    """Return the key of this browser's session; None if it has no valid one."""
    token = session_token(request, app_state.settings)
    with suppress(Unauthorized):
        return app_state.sessions.key(token) if token else None
    return None


def _wrong_key_page(request: Request, app_state: AppState, target: str, problem: str) -> Response:
    """Count a wrong key and say what is wrong with it; or, after many of them, only how long to wait."""
    wrong_keys = cast("FailureBackoff", request.app.state.wrong_keys)
    client = client_network(request.client.host if request.client else None)
    wait = math.ceil(wrong_keys.wait_seconds(client))
    if not wait:
        wrong_keys.record_failure(client)
        return show_problem(app_state, target, problem)
    answer = show_problem(app_state, target, f"Too many wrong keys. Try again in {wait} seconds.", 429)
    answer.headers["Retry-After"] = str(wait)
    return answer


@router.post("/ui/logout", dependencies=[SameOriginForm])
@runs_in(lambda lanes: lanes.urgent)
def sign_out(request: Request, app_state: AppStateDep) -> Response:
    """End the session of this browser."""
    token = session_token(request, app_state.settings)
    elsewhere = _sign_out_url(app_state, token) if token else None
    if token:
        app_state.sessions.end(token)
    # Not a redirect: a form may not lead to another site.
    answer: Response = RedirectResponse("/ui/login", 303)
    if elsewhere:
        answer = render_page("sign_in/continue.html", target=elsewhere)
    clear_session_cookie(answer, app_state.settings)
    return answer


def _sign_out_url(app_state: AppState, token: str) -> str | None:
    """Return where the session at the OpenID provider ends, too; None: there is none, or it offers no such page."""
    with suppress(Unauthorized, SecretUnreadable, StoreUnavailable):
        key = app_state.sessions.key(token)
        with app_state.database.read() as session:
            identity = identities.of_key(session, key.id)
        if identity is not None and identity.sealed is not None and app_state.provider.name is not None:
            return app_state.provider.sign_out_url(identities.token_of(Vault(app_state.settings), identity))
    return None
