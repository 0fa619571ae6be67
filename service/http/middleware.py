"""Middleware: request id, access log, security headers, origin check.

Plain ASGI, so that streams are not buffered.
"""

import ipaddress
import logging
import time
from functools import lru_cache
from http import HTTPStatus
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from core.ids import new_id
from core.monitoring.logging import bind
from core.settings.api import ApiSettings
from service.http.asgi_scope import route_pattern
from service.http.errors import http_error_response, internal_error_response

logger = logging.getLogger(__name__)

_SAFE_METHODS = {"GET", "HEAD", "OPTIONS"}
_WEBSOCKET = "WEBSOCKET"
"""In place of the method of a WebSocket, which a browser opens to any site."""
_MOST_HOSTS = 64
"""Hosts whose parts are kept: almost all requests name the same one, and to parse it takes as long as to route it."""

_HEADERS = {
    b"x-content-type-options": b"nosniff",
    b"x-frame-options": b"DENY",
    b"referrer-policy": b"same-origin",
    b"cross-origin-resource-policy": b"same-origin",
    b"content-security-policy": b"default-src 'none'; frame-ancestors 'none'",
    b"cache-control": b"no-store",
}
"""Default security headers; an endpoint may set its own."""


class RequestContextMiddleware:
    """Gives each request an id, security headers, a line in the access log, and a 500 response to unexpected errors."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        state = scope.setdefault("state", {})
        request_id = state["request_id"] = new_id("r")
        bind(request_id=request_id)
        began = time.monotonic()
        status = 0

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                given = dict(message["headers"])
                defaults = _HEADERS | {b"x-request-id": state["request_id"].encode()}
                message["headers"] = [*message["headers"], *((n, v) for n, v in defaults.items() if n not in given)]
            await send(message)

        try:
            await self._app(scope, receive, send_with_headers)
        except Exception as error:
            answer = internal_error_response(error)
            if status:  # partly sent: break the connection, so that the client does not take it as complete
                raise
            await answer(scope, receive, send_with_headers)
        finally:
            took = round((time.monotonic() - began) * 1000, 1)
            # Only the path: query strings may contain credentials.
            fields = {"method": scope["method"], "path": scope["path"], "route": route_pattern(scope), "status": status}
            fields |= {"ms": took} | _job_fields(scope)
            # Successful reads only at debug level: open pages poll every few seconds.
            quiet = scope["method"] in {"GET", "HEAD"} and status < HTTPStatus.BAD_REQUEST
            logger.log(logging.DEBUG if quiet else logging.INFO, "request", extra=fields)
            bind()


def _job_fields(scope: Scope) -> dict[str, str]:
    job_id = scope.get("path_params", {}).get("job_id")
    return {} if job_id is None else {"job_id": job_id}


class OriginCheckMiddleware:
    """Refuses requests that a page of another site made a browser send.

    With DNS rebinding, the Host header has a name that is not the service's; a page of another origin is recognised by
    the Origin header.
    """

    def __init__(self, app: ASGIApp, settings: ApiSettings) -> None:
        self._app = app
        self._public = urlsplit(settings.public_url or "").netloc.lower()
        self._names = {settings.host.lower(), _hostname(self._public), "localhost"} - {""}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or refuse it."""
        refusal = None
        if scope["type"] in {"http", "websocket"}:
            refusal = self._refusal(scope.get("method", _WEBSOCKET), Headers(scope=scope))
        if refusal is not None:
            await http_error_response(refusal)(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    def _refusal(self, method: str, headers: Headers) -> HTTPException | None:
        host = headers.get("host", "").lower()
        name = _hostname(host)
        if name and name not in self._names and not _is_address(name):
            return HTTPException(
                421, f"{name[:100]!r} is not a name of this service. Its operator can set GRADIENT_API__PUBLIC_URL."
            )
        origin = headers.get("origin")
        if method in _SAFE_METHODS or origin is None:
            return None
        if _netloc(origin) in {host, self._public} - {""}:
            return None
        return HTTPException(403, f"A page of another site ({origin[:100]!r}) may not change anything here.")


def _netloc(origin: str) -> str:
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:  # brackets without an IPv6 address
        return ""


@lru_cache(_MOST_HOSTS)
def _hostname(netloc: str) -> str:
    try:
        return urlsplit(f"//{netloc}").hostname or ""
    except ValueError:
        return netloc


@lru_cache(_MOST_HOSTS)
def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def is_loopback(host: str) -> bool:
    """Return whether a socket bound to this host is reachable only from this machine."""
    return host == "localhost" or (_is_address(host) and ipaddress.ip_address(host).is_loopback)
