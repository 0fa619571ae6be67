"""Limits of request bodies: small by default, raised only by dependencies that run after authentication.

Plain ASGI, so that streams are not buffered.
"""

import math

import anyio
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from core.settings.api import ApiSettings
from service.http.errors import http_error_response

DEFAULT_MAX_BYTES = 64 * 1024  # default limit, for sign-ins, forms and every route that does not raise it

MAX_JSON_BYTES = 1024**2  # limit of JSON bodies: what is parsed in some milliseconds; jobs are far smaller

_FORM_OVERHEAD = 64 * 1024
_WORKER_BYTES = 64 * 1024**2  # a list of some 300,000 artifacts; pieces of files are smaller
_SCOPE_KEY = "gradient.body"
_REST_SECONDS = 1.0
_LINGER_BYTES = 64 * 1024**2
LINGER_BYTES_PER_SECOND = 16 * 1024**2
LINGER_SECONDS = 10.0
_PAUSE_SECONDS = 0.05


def allow_json(connection: HTTPConnection) -> None:
    """Raise this request's limit to that of JSON bodies. Only for authenticated callers."""
    _allow(connection, MAX_JSON_BYTES)


def allow_upload(connection: HTTPConnection, api: ApiSettings, *, json_bytes: int | None = None) -> None:
    """Raise this request's limit to that of an upload with its JSON. Only for authenticated callers.

    `json_bytes`: largest JSON; None: that of JSON bodies.
    """
    _allow(connection, api.max_upload_bytes + (json_bytes or MAX_JSON_BYTES) + _FORM_OVERHEAD)


def allow_worker_files(connection: HTTPConnection) -> None:
    """Raise this request's limit to that of what a worker on another host sends. Only for authenticated workers."""
    _allow(connection, _WORKER_BYTES)


def _allow(connection: HTTPConnection, limit: int) -> None:
    body: _RequestBody | None = connection.scope.get(_SCOPE_KEY)
    if body is not None:
        body.limit = limit


class BodyLimitMiddleware:
    """Refuses bodies that are too large, and may answer before the end of an unread body.

    A client that is still sending when its connection is closed gets an error instead of the response, so the rest of
    its body is discarded for a while, slowly: a few such clients would otherwise occupy the whole event loop.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = scope[_SCOPE_KEY] = _RequestBody(receive, Headers(scope=scope))

        async def send_unless_too_large(message: Message) -> None:
            if message["type"] == "http.response.start" and not await body.skip(DEFAULT_MAX_BYTES, _REST_SECONDS):
                MutableHeaders(scope=message)["Connection"] = "close"
            elif body.unread and not message.get("more_body", False):
                await send({**message, "more_body": True})
                await body.skip(_LINGER_BYTES, LINGER_SECONDS, LINGER_BYTES_PER_SECOND)
                message = {"type": "http.response.body"}
            await send(message)

        try:
            await self._app(scope, body.receive, send_unless_too_large)
        except _BodyTooLarge as error:  # raised before any error handler was reached
            await http_error_response(error)(scope, receive, send_unless_too_large)


class _BodyTooLarge(HTTPException):
    """A body over the limit."""


class _RequestBody:
    def __init__(self, receive: Receive, headers: Headers) -> None:
        self.limit = DEFAULT_MAX_BYTES  # the largest size in bytes
        self._receive = receive
        self._declared = int(headers.get("content-length", "0"))
        self._awaits_leave = headers.get("expect", "").lower() == "100-continue"
        self._size = 0
        self._complete = False

    @property
    def unread(self) -> bool:
        """True while the client is still sending."""
        return not self._complete and not (self._awaits_leave and not self._size)

    async def receive(self) -> Message:
        if max(self._declared, self._size) <= self.limit:
            message = await self._next()
            if self._size <= self.limit:
                return message
        raise _BodyTooLarge(413, f"The body is larger than {self.limit:,} bytes, the limit here.")

    async def skip(self, size: int, seconds: float, bytes_per_second: float = math.inf) -> bool:
        """Discard up to `size` bytes of the rest within `seconds`; return whether the body is complete."""
        if not self.unread:
            return self._complete
        start, began = self._size, anyio.current_time()
        with anyio.move_on_after(seconds):
            while self.unread and self._size < start + size:
                await self._next()
                ahead = (self._size - start) / bytes_per_second - (anyio.current_time() - began)
                if ahead > _PAUSE_SECONDS:
                    await anyio.sleep(ahead)
        return self._complete

    async def _next(self) -> Message:
        message = await self._receive()
        self._size += len(message.get("body", b""))
        self._complete = not message.get("more_body", False)
        return message


def has_body(headers: Headers) -> bool:
    length = headers.get("content-length", "0")
    return "transfer-encoding" in headers or (length.isdecimal() and int(length) > 0)
