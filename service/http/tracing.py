from opentelemetry.trace import SpanKind
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from core.errors import GradientError
from core.monitoring import tracing
from core.monitoring.tracing import TRACE_PARENT, TRACE_STATE, TRACER
from core.security.api_keys import ApiKeyCache
from service.http.asgi_scope import METHODS, route_pattern
from service.http.lanes import Lanes

_UNTRACED = frozenset({"/health", "/readiness", "/metrics"})
"""Health checks and scrapes, which are frequent and not worth a span."""
_FIRST_SERVER_ERROR = 500
_TRACE_PARENT = TRACE_PARENT.encode()


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
        scheme, _, token = headers.get("authorization", "").partition(" ")
        secret = (headers.get("x-api-key") or (token if scheme.lower() == "bearer" else "")).strip()
        if not secret:
            return False
        try:
            # This caches the key, so that the endpoint needs no second query.
            return self._keys.cached(secret) is not None or bool(
                await self._lanes.urgent.run(self._keys.authenticate, secret)
            )
        except GradientError:
            return False
