"""Signing in with an OpenID provider, and a code for `gradient-cli login --browser` of who has."""

import base64
import json
from contextlib import suppress
from typing import Annotated, Any

from fastapi import Query, Request
from fastapi.responses import RedirectResponse, Response

from core.db.database import on_commit
from core.errors import KeyRefused, StoreUnavailable, Unauthorized
from core.security import identities, one_time_tokens
from core.security.encryption import Vault
from core.security.one_time_tokens import TTL_SECONDS, Purpose
from core.security.sessions import open_session
from service.app_state import AppState
from service.auth.authentication import PageCaller
from service.auth.openid import CALLBACK
from service.auth.session_cookie import cookie_name
from service.dashboard.login import SameOriginForm, safe_redirect_target, show_problem, start_session
from service.dashboard.rendering import render_page
from service.deps import AppStateDep
from service.http.routing import Router

# The provider may be slow, and sign-ins with a key have to work meanwhile.
router = Router(lane=lambda lanes: lanes.files)


@router.get("/ui/login/provider")
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
    if app_state.provider.name is None:
        return RedirectResponse("/ui/login", 303)
    started: dict[str, str] = {}
    with suppress(ValueError, TypeError, RecursionError):
        cookie = base64.urlsafe_b64decode(request.cookies.get(_cookie(app_state)["key"], ""))
        started = {name: str(value) for name, value in dict(json.loads(cookie)).items()}
    target, settings = safe_redirect_target(started.get("next")), app_state.settings
    try:
        account = app_state.provider.finish(request.query_params, started)
        with app_state.database.write() as session:
            key_id = identities.sign_in(session, Vault(settings), settings.oidc, account)
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
    return {"key": f"{name}_started", "httponly": True, "samesite": "lax", "secure": name.startswith("__Host-")}


@router.get("/ui/login/cli", response_model=None)
def offer_code(app_state: AppStateDep, caller: PageCaller) -> Response:
    """Ask whether a client may have a key; sign in first if that was long ago."""
    if caller.session_token is None or app_state.sessions.recent_user(caller.session_token) is None:
        return RedirectResponse("/ui/login/provider?next=/ui/login/cli", 303)
    return render_page("sign_in/cli.html", caller=caller, code=None)


@router.post("/ui/login/cli", dependencies=[SameOriginForm])
def give_code(app_state: AppStateDep, caller: PageCaller) -> Response:
    """Show a code, which the client exchanges for a key of the user."""
    user_id = caller.session_token and app_state.sessions.recent_user(caller.session_token)
    if not user_id:
        raise KeyRefused("You signed in with an API key, or more than ten minutes ago. Sign in again.")
    with app_state.database.write() as session:
        code = one_time_tokens.issue(session, Purpose.LOGIN, user_id)
    return render_page("sign_in/cli.html", caller=caller, code=code)
