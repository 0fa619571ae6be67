"""Signing in with an OpenID provider, and giving a key to `gradient-cli login --browser` of who has."""

import base64
import json
import re
from contextlib import suppress
from typing import Annotated, Any
from urllib.parse import urlencode

from fastapi import Query, Request
from fastapi.responses import RedirectResponse, Response

from core.db.database import on_commit
from core.errors import KeyRefused, StoreUnavailable, Unauthorized
from core.security import identities, one_time_tokens
from core.security.actor import Actor, act_as
from core.security.encryption import Vault
from core.security.one_time_tokens import TTL_SECONDS, Purpose
from core.security.sessions import open_session
from service.app_state import AppState
from service.auth.authentication import PageCaller, Principal
from service.auth.openid import CALLBACK
from service.auth.session_cookie import cookie_name
from service.dashboard.login import (
    FormTexts,
    SameOriginForm,
    safe_redirect_target,
    show_problem,
    start_session,
)
from service.dashboard.rendering import render_page
from service.deps import AppStateDep
from service.http.routing import Router

# The provider may be slow, and sign-ins with a key have to work meanwhile.
router = Router(lane=lambda lanes: lanes.files)

_BEGIN = "/ui/login/provider"
_CHALLENGE = re.compile(r"[A-Za-z0-9_-]{43}\Z")  # SHA-256 in Base64
_Port = Annotated[int | None, Query(ge=1024, le=65535)]


@router.get(_BEGIN)
def begin(app_state: AppStateDep, wanted: Annotated[str | None, Query(alias="next")] = None) -> Response:
    """Send the browser to the provider, with a cookie by which its answer is recognised."""
    if app_state.provider.name is None:
        return RedirectResponse("/ui/login", 303)
    started = app_state.provider.begin()
    answer = RedirectResponse(started.pop("url"), 303)
    cookie = base64.urlsafe_b64encode(json.dumps(started | {"next": safe_redirect_target(wanted)}).encode()).decode()
    # Lax: the provider's answer comes from another site.
    answer.set_cookie(max_age=TTL_SECONDS, value=cookie, **_cookie(app_state))
    return answer


@router.get(CALLBACK, response_model=None)
def finish(request: Request, app_state: AppStateDep) -> Response:
    """Open a session for who has signed in at the provider; made at the first sign-in."""
    started: dict[str, str] = {}
    with suppress(ValueError):
        started = json.loads(base64.urlsafe_b64decode(request.cookies.get(_cookie(app_state)["key"], "")))
    target = safe_redirect_target(started.get("next"))
    act_as(Actor(None, request.client.host if request.client else None))
    try:
        account = app_state.provider.finish(request.query_params, started)
        with app_state.database.write() as session:
            vault, settings = Vault(app_state.settings), app_state.settings
            key_id = identities.sign_in(session, vault, settings.oidc, account)
            token = open_session(session, key_id, settings.sign_in)
            on_commit(session, app_state.keys.clear)
        # Not a redirect: after the provider's page, the browser would not send the cookie with it.
        answer: Response = render_page("sign_in/continue.html", target=target)
        start_session(request, app_state, token, answer)
    except (Unauthorized, StoreUnavailable) as error:
        answer = show_problem(app_state, target, error.message, 503 if isinstance(error, StoreUnavailable) else 401)
    answer.delete_cookie(**_cookie(app_state))
    return answer


def _cookie(app_state: AppState) -> dict[str, Any]:
    name = cookie_name(app_state.settings)
    secure = name.startswith("__Host-")
    return {"key": f"{name}_started", "httponly": True, "samesite": "lax", "secure": secure}


@router.get("/ui/login/cli", response_model=None)
def offer_key(
    request: Request,
    app_state: AppStateDep,
    caller: PageCaller,
    challenge: str = "",
    port: _Port = None,
    name: str = "",
) -> Response:
    """Ask whether a client on the command line may have a key; sign in first if that was long ago."""
    if _fresh_user(app_state, caller, challenge) is None:
        here = f"{request.url.path}?{request.url.query}"
        return RedirectResponse(f"{_BEGIN}?{urlencode({'next': here})}", 303)
    return render_page("sign_in/cli.html", caller=caller, challenge=challenge, port=port, client=name[:100], code=None)


@router.post("/ui/login/cli", response_model=None, dependencies=[SameOriginForm])
def give_key(app_state: AppStateDep, caller: PageCaller, texts: FormTexts) -> Response:
    """Hand a code to the client: by the browser to its port on this machine, otherwise by the user."""
    challenge, port = texts.get("challenge", ""), texts.get("port", "")
    user_id = _fresh_user(app_state, caller, challenge)
    if user_id is None:
        raise KeyRefused("You signed in more than ten minutes ago. Run `gradient-cli login --browser` again.")
    with app_state.database.write() as session:
        code = one_time_tokens.issue(session, Purpose.CLI, user_id, bound_to=challenge)
    target = f"http://127.0.0.1:{int(port)}/?{urlencode({'code': code})}" if port.isdecimal() else None
    return render_page("sign_in/cli.html", caller=caller, client="", code=code, target=target)


def _fresh_user(app_state: AppState, caller: Principal, challenge: str) -> str | None:
    """Return the user of a session that was opened lately; None: it was not.

    Raises `KeyRefused`: the session is not of a user of the provider.
    """
    if not _CHALLENGE.match(challenge):
        raise KeyRefused("This address is incomplete. Run `gradient-cli login --browser` again.")
    with app_state.database.read() as session:
        identity = identities.of_key(session, caller.id)
    if identity is None or caller.session_token is None:
        raise KeyRefused("You signed in with an API key. `gradient-cli login` asks for that key.")
    return identity.user_id if app_state.sessions.signed_in_lately(caller.session_token) else None
