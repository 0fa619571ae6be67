"""The layer that every request passes: its id, its line in the log, metrics, security headers, origin check, errors.

One layer, in plain ASGI, so that streams are not buffered. A request that needs more, such as a limit of its body or a
page for an error, passes another one.
"""

import ipaddress
import logging
import time
from collections.abc import Callable, Mapping
from functools import lru_cache
from http import HTTPStatus
from typing import Any
from urllib.parse import urlsplit

from fastapi import FastAPI, Request
from fastapi.middleware.asyncexitstack import AsyncExitStackMiddleware
from opentelemetry.trace import SpanKind
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware.gzip import DEFAULT_EXCLUDED_CONTENT_TYPES, GZipMiddleware
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from core.errors import GradientError
from core.ids import new_id
from core.monitoring import tracing
from core.monitoring.logging import bind
from core.monitoring.tracing import TRACE_PARENT, TRACE_STATE, TRACER
from core.security.actor import Actor, act_as
from core.security.api_keys import ApiKeyCache
from core.security.visibility import see_as
from core.settings.api import ApiSettings
from service.app_state import AppState
from service.auth.authentication import sent_key
from service.http.asgi_scope import METHODS, route_pattern
from service.http.body_limit import BodyLimitMiddleware, has_body
from service.http.errors import http_error_response, internal_error_response
from service.http.lanes import Lanes
from service.monitoring.service_metrics import ServiceMetrics, sent_content

logger = logging.getLogger(__name__)

_SAFE_METHODS = {"GET", "HEAD", "OPTIONS"}
_WEBSOCKET = "WEBSOCKET"  # in place of the method of a WebSocket, which a browser opens to any site
_MOST_HOSTS = 64
"""Hosts whose parts are kept: almost all requests name the same one, and to parse it takes as long as to route it."""
_NOT_COMPRESSED = (*DEFAULT_EXCLUDED_CONTENT_TYPES, "application/octet-stream", "text/plain")
"""Content types of artifacts and raw logs, whose length must stay known, and of streams."""

_HEADERS = {
    b"x-content-type-options": b"nosniff",
    b"x-frame-options": b"DENY",
    b"referrer-policy": b"same-origin",
    b"cross-origin-resource-policy": b"same-origin",
    b"cross-origin-opener-policy": b"same-origin",
    b"permissions-policy": b"camera=(), geolocation=(), microphone=(), payment=(), usb=()",
    b"content-security-policy": b"default-src 'none'; frame-ancestors 'none'",
    b"cache-control": b"no-store",
}
"""Default security headers; an endpoint may set its own."""
_HTTPS_HEADERS = _HEADERS | {b"strict-transport-security": b"max-age=31536000"}
"""Those of a service whose public URL is https."""
_UNTRACED = frozenset({"/health", "/readiness", "/metrics"})
"""Health checks and scrapes, which are frequent and not worth a span."""
_FIRST_SERVER_ERROR = 500
_TRACE_PARENT = TRACE_PARENT.encode()


class Application(FastAPI):
    """The application, with one layer around its routes."""

    rewrite_path: Callable[[Scope], None]
    error_pages: Callable[[ASGIApp], ASGIApp]

    def build_middleware_stack(self) -> ASGIApp:
        """Build the layers, once all routes are known."""
        return _Layers(self, super().build_middleware_stack())


class _Layers:
    def __init__(self, app: Application, websockets: ASGIApp) -> None:
        app_state: AppState = app.state.app_state
        self._app = app
        self._routes = AsyncExitStackMiddleware(app.router)
        self._websockets = websockets
        self._metrics = app_state.service_metrics
        self._origins = _Origins(app_state.settings.api)
        is_https = app_state.settings.public_url.lower().startswith("https://")
        self._headers = _HTTPS_HEADERS if is_https else _HEADERS
        self._traced = TracingMiddleware(self._serve, app_state.keys, app_state.lanes)
        self._limited = BodyLimitMiddleware(self._answer)
        self._paged = app.error_pages(self._trace_or_serve)
        # The outermost layer: error pages are rendered from responses that are not compressed yet.
        self._compressed = GZipMiddleware(
            self._page_or_serve, minimum_size=1000, compresslevel=6, exclude_content_types=_NOT_COMPRESSED
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request or WebSocket."""
        if scope["type"] == "http":
            headers = Headers(scope=scope)
            compressed = "gzip" in headers.get("accept-encoding", "")
            await (self._compressed if compressed else self._page_or_serve)(scope, receive, send)
            return
        refusal = self._origins.refusal(_WEBSOCKET, Headers(scope=scope)) if scope["type"] == "websocket" else None
        await (self._websockets if refusal is None else http_error_response(refusal))(scope, receive, send)

    async def _page_or_serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_page = scope["path"].startswith("/ui")
        await (self._paged if is_page else self._trace_or_serve)(scope, receive, send)

    async def _trace_or_serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_traced = tracing.is_enabled() or continues_trace(scope)
        await (self._traced if is_traced else self._serve)(scope, receive, send)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        bind(request_id=scope.setdefault("state", {}).setdefault("request_id", new_id("r")))
        act_as(Actor(None, scope["client"][0] if scope.get("client") else None))
        see_as(None)
        sent = _Sent(scope, send, self._metrics, self._headers)
        app = self._limited if has_body(Headers(scope=scope)) else self._answer
        try:
            await app(scope, receive, sent)
        finally:
            sent.finish()
            bind()

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = False

        async def send_started(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        headers = Headers(scope=scope)
        refusal = _ambiguous_length(headers) or self._origins.refusal(scope["method"], headers)
        if refusal is not None:
            await http_error_response(refusal)(scope, receive, send)
            return
        self._app.rewrite_path(scope)
        try:
            await self._routes(scope, receive, send_started)
        except Exception as error:
            # Partly sent: break the connection, so that the client does not take it as complete.
            if started:
                internal_error_response(error)
                raise
            await self._error_response(Request(scope, receive), error)(scope, receive, send)
            error.__traceback__ = None  # some errors are raised again for other requests

    def _error_response(self, request: Request, error: Exception) -> Response:
        handlers: Mapping[Any, Callable[[Request, Exception], Response]] = self._app.exception_handlers  # type: ignore[assignment] # ours are plain functions
        found_handlers = (handlers[kind] for kind in type(error).__mro__ if kind in handlers)
        handle = next(found_handlers, None)
        return internal_error_response(error) if handle is None else handle(request, error)


class _Sent:
    """Sends a response with the default headers, and records it in the metrics and in the log."""

    __slots__ = ("_began", "_content", "_headers", "_metrics", "_scope", "_send", "_status", "_took")

    def __init__(self, scope: Scope, send: Send, metrics: ServiceMetrics, headers: Mapping[bytes, bytes]) -> None:
        self._scope, self._send, self._metrics, self._headers = scope, send, metrics, headers
        self._began = time.perf_counter()
        self._took: float | None = None
        self._status = 0
        self._content: str | None = None

    async def __call__(self, message: Message) -> None:
        """Send a part of the response."""
        if message["type"] == "http.response.start":
            self._took, self._status = time.perf_counter() - self._began, message["status"]
            self._content = sent_content(self._scope, self._status)
            headers = message["headers"] = [*message["headers"]]
            given = {name for name, _ in headers}
            headers += [(b"x-request-id", self._scope["state"]["request_id"].encode())]
            headers += [header for header in self._headers.items() if header[0] not in given]
        await self._send(message)
        if self._content is not None and message["type"] == "http.response.body":
            self._metrics.count_sent_bytes(self._content, len(message.get("body", b"")))

    def finish(self) -> None:
        seconds = time.perf_counter() - self._began
        self._metrics.count_request(self._scope, self._status, seconds if self._took is None else self._took)
        # Only at debug level if successful: reads, as open pages poll every few seconds, and what workers send.
        frequent = self._scope["method"] in {"GET", "HEAD"} or self._scope["path"].startswith("/worker/")
        quiet = frequent and self._status < HTTPStatus.BAD_REQUEST
        level = logging.DEBUG if quiet else logging.INFO
        if not logger.isEnabledFor(level):
            return
        # Only the path: query strings may contain credentials.
        fields = {"method": self._scope["method"], "path": self._scope["path"], "route": route_pattern(self._scope)}
        fields |= {"status": self._status, "ms": round(seconds * 1000, 1)} | _job_fields(self._scope)
        logger.log(level, "request", extra=fields)


def _ambiguous_length(headers: Headers) -> HTTPException | None:
    """Return why a request is refused whose end a proxy may see elsewhere, and so another request after it."""
    if "transfer-encoding" not in headers or "content-length" not in headers:
        return None
    return HTTPException(400, "Send Content-Length or Transfer-Encoding, not both.", {"Connection": "close"})


def _job_fields(scope: Scope) -> dict[str, Any]:
    job_id = scope.get("path_params", {}).get("job_id")
    return {} if job_id is None else {"job_id": job_id}


class _Origins:
    """Refuses requests that a page of another site made a browser send.

    With DNS rebinding, the Host header has a name that is not the service's; a page of another origin is recognised by
    the Origin header.
    """

    def __init__(self, settings: ApiSettings) -> None:
        self._public = urlsplit(settings.public_url or "").netloc.lower()
        self._names = {settings.host.lower(), _hostname(self._public), "localhost"} - {""}

    def refusal(self, method: str, headers: Headers) -> HTTPException | None:
        """Return why a request is refused; None: it is not."""
        host = headers.get("host", "").lower()
        name = _hostname(host)
        if name and name not in self._names and not _is_address(name):
            return HTTPException(
                421, f"{name[:100]!r} is not the name of this service. Its operator can set GRADIENT_API__PUBLIC_URL."
            )
        origin = headers.get("origin")
        if method in _SAFE_METHODS or origin is None:
            return None
        if _netloc(origin) in {host, self._public} - {""}:
            return None
        return HTTPException(403, f"Pages of other sites ({origin[:100]!r}) may not change anything here.")


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


def continues_trace(scope: Scope) -> bool:
    return any(name == _TRACE_PARENT for name, _ in scope["headers"])


class TracingMiddleware:
    """Wraps every request in a server span; plain ASGI, so that streams are not buffered.

    `keys`: the API keys: without a valid key, a client's trace is not continued and its sampling flag is ignored.
    """

    def __init__(self, app: ASGIApp, keys: ApiKeyCache, lanes: Lanes) -> None:
        self._app = app
        self._keys = keys
        self._lanes = lanes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] in _UNTRACED:
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope)
        sent = {name: given[name] for name in (TRACE_PARENT, TRACE_STATE) if name in given}
        if sent and not await self._has_valid_key(given):
            sent = {}
        if not sent and not tracing.is_enabled():
            await self._app(scope, receive, send)
            return
        method = scope["method"] if scope["method"] in METHODS else "_OTHER"
        span = TRACER.start_span(method, tracing.extract_context(sent), SpanKind.SERVER)

        async def send_recorded(message: Message) -> None:
            if message["type"] == "http.response.start":
                status = message["status"]
                span.set_attribute("http.response.status_code", status)
                if status >= _FIRST_SERVER_ERROR:
                    tracing.mark_error(span, str(status))
            await send(message)

        with tracing.use_span(span):
            try:
                await self._app(scope, receive, send_recorded if span.is_recording() else send)
            finally:
                if span.is_recording():
                    route = route_pattern(scope)
                    span.update_name(f"{method} {route}")
                    span.set_attributes({"http.request.method": method, "http.route": route, "url.path": scope["path"]})

    async def _has_valid_key(self, headers: Headers) -> bool:
        secret = sent_key(headers)
        if not secret:
            return False
        try:
            # This caches the key, so that the endpoint needs no second query.
            return self._keys.cached(secret) is not None or bool(
                await self._lanes.urgent.run(self._keys.authenticate, secret)
            )
        except GradientError:
            return False
