"""What stands before every request: its id and log line, safe headers, bounded bodies, and whose page it is from.

Plain ASGI, so that streams pass through untouched.
"""

import ipaddress
import logging
import re
import time
from http import HTTPStatus
from urllib.parse import urlsplit

import anyio
import structlog
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from core.ids import new_id
from core.settings import ApiSettings
from service.errors import http_answer, incident
from service.scopes import route_of

logger = logging.getLogger(__name__)

_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}\Z")
_SAFE_METHODS = {"GET", "HEAD", "OPTIONS"}
_FORM_OVERHEAD = 64 * 1024
_DRAIN_BYTES = 1024**3
_DRAIN_SECONDS = 60.0

_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Cache-Control": "no-store",
}
"""Set where an endpoint set nothing of its own."""


class RequestContext:
    """Gives every request an id, safe headers and one line in our own log, and every failure an answer."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get("x-request-id", "")
        request_id = given if _REQUEST_ID.match(given) else new_id("r")
        structlog.contextvars.bind_contextvars(request_id=request_id)
        scope.setdefault("state", {})["request_id"] = request_id
        began = time.monotonic()
        status = 0

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                headers["X-Request-Id"] = request_id
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        try:
            await self._app(scope, receive, send_with_headers)
        except Exception as error:
            answer = incident(error)
            if status:  # half an answer is out: the connection must break, so that nobody takes it for whole
                raise
            await answer(scope, receive, send_with_headers)
        finally:
            took = round((time.monotonic() - began) * 1000, 1)
            # The path alone: queries may carry what does not belong into a log.
            fields = {"method": scope["method"], "path": scope["path"], "route": route_of(scope), "status": status}
            fields |= {"ms": took} | _of_job(scope)
            # A page that is open asks every few seconds; what went well and changed nothing is not news.
            quiet = scope["method"] in {"GET", "HEAD"} and status < HTTPStatus.BAD_REQUEST
            logger.log(logging.DEBUG if quiet else logging.INFO, "request", extra=fields)
            structlog.contextvars.unbind_contextvars("request_id")


def _of_job(scope: Scope) -> dict[str, str]:
    job_id = scope.get("path_params", {}).get("job_id")
    return {} if job_id is None else {"job_id": job_id}


class BodyLimit:
    """Refuses bodies that are too large, and reads what is left of a body before an early answer.

    A client that is still sending when the answer comes gets a reset connection instead of the message.
    """

    def __init__(self, app: ASGIApp, settings: ApiSettings) -> None:
        self._app = app
        self._max_body = settings.max_body_bytes
        self._max_form = settings.max_upload_bytes + settings.max_body_bytes + _FORM_OVERHEAD

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        headers = Headers(raw=scope.get("headers", []))
        if scope["type"] != "http" or not _has_body(headers):
            await self._app(scope, receive, send)
            return
        form = headers.get("content-type", "").startswith("multipart/")
        body = _CountedBody(receive, self._max_form if form else self._max_body, headers.get("expect", ""))

        async def send_after_body(message: Message) -> None:
            if message["type"] == "http.response.start" and not await body.drain():
                # The server would go on reading the rest for the sake of a next request.
                MutableHeaders(scope=message)["Connection"] = "close"
            await send(message)

        if int(headers.get("content-length", "0")) > body.limit:
            await http_answer(body.too_large())(scope, receive, send_after_body)
        else:
            await self._app(scope, body.receive, send_after_body)


class _CountedBody:
    """A body on its way in."""

    def __init__(self, receive: Receive, limit: int, expect: str) -> None:
        self.limit = limit
        self._receive = receive
        self._awaits_leave = expect.lower() == "100-continue"
        self._size = 0
        self._complete = False

    async def receive(self) -> Message:
        """The next message.

        Raises:
            HTTPException: 413: the body is too large.
        """
        message = await self._next()
        if self._size > self.limit:
            raise self.too_large()
        return message

    def too_large(self) -> HTTPException:
        """The refusal."""
        return HTTPException(413, f"The body is larger than {self.limit:,} bytes, the limit here.")

    async def drain(self) -> bool:
        """Read the rest, within bounds, unless the client waits for leave to send it; whether it is all read."""
        if self._awaits_leave and not self._size:
            return False
        bound = self._size + _DRAIN_BYTES
        with anyio.move_on_after(_DRAIN_SECONDS):
            while not self._complete and self._size < bound:
                await self._next()
        return self._complete

    async def _next(self) -> Message:
        message = await self._receive()
        self._size += len(message.get("body", b""))
        self._complete = not message.get("more_body", False)
        return message


def _has_body(headers: Headers) -> bool:
    length = headers.get("content-length", "0")
    return "transfer-encoding" in headers or (length.isdecimal() and int(length) > 0)


class SameSite:
    """Refuses requests that another site's page made a browser send.

    A name that an attacker points at this machine (DNS rebinding) is not one of ours; a page of another origin says
    so in its Origin header.
    """

    def __init__(self, app: ASGIApp, settings: ApiSettings) -> None:
        self._app = app
        self._public = urlsplit(settings.public_url or "").netloc.lower()
        self._names = {settings.host.lower(), _hostname(self._public), "localhost"} - {""}
        # Reachable from elsewhere under names we cannot know, unless one was told.
        self._any_name = not _is_loopback(settings.host) and not self._public

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or refuse it."""
        refusal = self._refusal(scope["method"], Headers(scope=scope)) if scope["type"] == "http" else None
        if refusal is not None:
            await http_answer(refusal)(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    def _refusal(self, method: str, headers: Headers) -> HTTPException | None:
        host = headers.get("host", "").lower()
        name = _hostname(host)
        if not (self._any_name or not name or name in self._names or _is_address(name)):
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
    except ValueError:  # brackets that hold no address
        return ""


def _hostname(netloc: str) -> str:
    try:
        return urlsplit(f"//{netloc}").hostname or ""
    except ValueError:
        return netloc


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _is_loopback(host: str) -> bool:
    return host == "localhost" or (_is_address(host) and ipaddress.ip_address(host).is_loopback)
