"""Error pages: if a browser requested a page, the API's error response is rendered as one."""

import json
import re
from typing import Any
from urllib.parse import quote

from fastapi.responses import RedirectResponse, Response
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from core.errors import GradientError, Unauthorized
from service.auth.authentication import Principal
from service.auth.session_cookie import session_token
from service.dashboard.rendering import render_page

_UNAUTHORIZED = 401
_FIRST_ERROR = 400
_FIRST_SERVER_ERROR = _INTERNAL = 500
_HEADINGS = {
    401: "Sign in to see this",
    403: "This was refused",
    404: "There is nothing here",
    409: "This is not possible here",
    410: "This was removed",
    413: "This is too large",
    429: "A limit has been reached",
    501: "This server is not set up for that",
    503: "Not available right now",
}
_FORM = "Go back, and use the form's button."
_TO_DO = {
    ("POST", 401): "Sign in, then send the form again: nothing was changed.",
    ("GET", 405): _FORM,
    ("POST", 405): _FORM,
    ("POST", 413): "Go back, and send less.",
    ("GET", 422): "Correct the address of the page.",
    ("POST", 422): "Go back, and correct the form.",
    ("GET", 500): "Try again. If it fails again, tell the operator of this server the id.",
    ("POST", 500): "See whether it was done before you send the form again. Tell the operator of this server the id.",
}
"""What to do, by method and status, where the message of the error does not say it."""
_FOR_PEOPLE = {
    re.compile(r"The request has no API key\. .*"): "You are not signed in.",
    re.compile(r".*/openapi\.json.*"): "No page has this address.",
    re.compile(r"[A-Z]+ /ui.* does not exist; .*"): "Only a form of these pages leads here, no link.",
    re.compile(r" `gradient-(cli|server) [^`]+` (lists|shows) [^.]+\."): "",  # where to find an id
}
_SECTIONS = ("jobs", "comparisons", "schedules", "sweeps", "projects", "machines", "settings")
_REPLACED_HEADERS = {"content-type", "content-length", "content-security-policy", "cache-control", "www-authenticate"}


class ErrorPageMiddleware:
    """Middleware that turns error responses under `/ui` into pages.

    The outermost one, so that errors of the other middleware are shown as pages too.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not _wants_page(scope):
            await self._app(scope, receive, send)
            return
        held: Message | None = None
        body = b""

        async def send_unless_replaced(message: Message) -> None:
            nonlocal held, body
            if message["type"] == "http.response.start" and _is_error(message):
                held = message
            elif held is None:
                await send(message)
            else:
                body += message.get("body", b"")
                if not message.get("more_body", False):
                    await (await _render_error(scope, held, body))(scope, receive, send)

        await self._app(scope, receive, send_unless_replaced)


def _wants_page(scope: Scope) -> bool:
    if scope["type"] != "http" or not (scope["path"] == "/ui" or scope["path"].startswith("/ui/")):
        return False
    return "text/html" in Headers(scope=scope).get("accept", "")


def _is_error(message: Message) -> bool:
    kind = Headers(raw=message["headers"]).get("content-type", "")
    return bool(message["status"] >= _FIRST_ERROR and kind.startswith("application/json"))


async def _render_error(scope: Scope, held: Message, body: bytes) -> Response:
    error: dict[str, Any] = json.loads(body)["error"]
    status: int = held["status"]
    answer = _redirect_to_sign_in(scope) if status == _UNAUTHORIZED and scope["method"] == "GET" else None
    if answer is None:
        heading_of_status = _HEADINGS.get(status)
        heading = heading_of_status or (
            "Something went wrong here" if status >= _FIRST_SERVER_ERROR else "That cannot be done"
        )
        # Only what changed nothing is asked for again.
        again = Headers(raw=held["headers"]).get("retry-after") if scope["method"] == "GET" else None
        message = error["message"]
        for pattern, text in _FOR_PEOPLE.items():
            message = pattern.sub(text, message)
        answer = render_page(
            "error.html",
            status,
            heading=heading,
            message=message,
            to_do=_TO_DO.get((scope["method"], status)),
            code=status,
            again=again,
            repeats=again or (scope["method"], status) == ("GET", _INTERNAL),
            caller=await _find_caller(scope, status),
            section=next((name for name in _SECTIONS if scope["path"].startswith(f"/ui/{name}")), ""),
        )
    headers = MutableHeaders(raw=answer.raw_headers)
    for name, value in Headers(raw=held["headers"]).items():
        if name not in _REPLACED_HEADERS:
            headers.setdefault(name, value)
    return answer


async def _find_caller(scope: Scope, status: int) -> Principal | None:
    """Return who is signed in, for the navigation; without a name if only a database that may have failed knows it."""
    app_state = scope["app"].state.app_state
    token = session_token(HTTPConnection(scope), app_state.settings)
    caller: Principal | None = scope["state"].get("caller")
    if caller or not token:
        return caller
    if status < _FIRST_SERVER_ERROR:
        try:
            key = await app_state.lanes.urgent.run(app_state.sessions.key, token)
            return Principal(key.id, key.name)
        except Unauthorized:
            return None
        except (GradientError, HTTPException):
            pass
    return Principal("", "")


def _redirect_to_sign_in(scope: Scope) -> Response:
    headers = Headers(scope=scope)
    query = scope["query_string"].decode("latin-1")
    wanted = quote(scope["path"], safe="/") + (f"?{query}" if query else "")
    if headers.get("sec-fetch-site") == "cross-site":
        # A link on another site: the browser withheld our cookie. It sends it when our own page redirects.
        return render_page("sign_in/continue.html", target=wanted)
    ended = "&ended=1" if session_token(HTTPConnection(scope), scope["app"].state.app_state.settings) else ""
    return RedirectResponse(f"/ui/login?next={quote(wanted, safe='/')}{ended}", 303)
