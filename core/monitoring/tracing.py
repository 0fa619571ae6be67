"""Tracing with the OpenTelemetry API.

It has no effect until the composition root sets up the SDK.

Spans must not contain users' data, because they may be sent to a third-party service; an error is recorded by its
type only.
"""

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from datetime import datetime

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import NonRecordingSpan, Span, SpanContext, Status, StatusCode, TraceFlags
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

TRACER = trace.get_tracer("gradient-jobs")  # a proxy, which uses the SDK even if that is set up after this import
TRACE_PARENT = "traceparent"
TRACE_STATE = "tracestate"

_W3C = TraceContextTextMapPropagator()
_fixed: ContextVar["SpanIds | None"] = ContextVar("fixed_ids", default=None)


class SpanIds:
    """Deterministic ids of a span: any process that knows its names can emit the span or children of it.

    Args:
        parent: Context of the parent span, from `extract_context`.
        names: Names that identify the span; the first one determines the trace id if `parent` has no trace.
    """

    def __init__(self, parent: Context, *names: str) -> None:
        above = trace.get_current_span(parent).get_span_context()
        self.trace_id = above.trace_id if above.is_valid else _digest(16, names[0])
        self.span_id = _digest(8, *names)
        self._parent = parent
        self._flags = above.trace_flags if above.is_valid else TraceFlags(TraceFlags.SAMPLED)

    @property
    def child_context(self) -> Context:
        """Context for child spans; this span need not be emitted yet."""
        here = SpanContext(self.trace_id, self.span_id, is_remote=True, trace_flags=self._flags)
        return trace.set_span_in_context(NonRecordingSpan(here), Context())

    def emit(
        self, name: str, began: datetime, ended: datetime, attributes: Mapping[str, str | int], error: str | None
    ) -> None:
        """Emit this span when it has ended. A repeat emits the same span. `error`: error code; None: no error."""
        token = _fixed.set(self)
        try:
            span = TRACER.start_span(name, context=self._parent, attributes=attributes, start_time=_ns(began))
        finally:
            _fixed.reset(token)
        if error is not None:
            span.set_status(Status(StatusCode.ERROR, error))
        span.end(_ns(max(began, ended)))


def fixed_ids() -> SpanIds | None:
    """Return the ids for the span being started, for the SDK's id generator; None: any."""
    return _fixed.get()


def extract_context(headers: Mapping[str, str]) -> Context:
    """Extract the trace context from W3C headers (`traceparent`, `tracestate`); empty if there is none."""
    return _W3C.extract(headers, Context())


def trace_parent() -> str | None:
    """Return the W3C traceparent of the current span; None if there is none."""
    headers: dict[str, str] = {}
    _W3C.inject(headers)
    return headers.get(TRACE_PARENT)


def is_enabled() -> bool:
    """Return whether the SDK is set up; else no span is recorded, and only clients' traces are passed on."""
    return not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider)


def use_span(entered: Span) -> AbstractContextManager[Span]:
    """Make this span current and end it afterwards; exceptions are not recorded."""
    return trace.use_span(entered, end_on_exit=True, record_exception=False, set_status_on_exception=False)


@contextmanager
def span(
    name: str, context: Context | None = None, attributes: Mapping[str, str | int] | None = None
) -> Iterator[Span]:
    """Start a span and make it current; an exception is recorded by its type, without its message."""
    if context is None and not is_enabled():
        yield trace.get_current_span()
        return
    with TRACER.start_as_current_span(
        name, context, attributes=attributes, record_exception=False, set_status_on_exception=False
    ) as entered:
        try:
            yield entered
        except Exception as error:
            mark_error(entered, type(error).__name__)
            raise


def set_attributes(attributes: Mapping[str, str | int]) -> None:
    trace.get_current_span().set_attributes(attributes)


def mark_error(failed: Span, code: str) -> None:
    failed.set_attribute("error.type", code)
    failed.set_status(Status(StatusCode.ERROR, code))


def _digest(size: int, *names: str) -> int:
    return int.from_bytes(hashlib.sha256("\0".join(names).encode()).digest()[:size], "big") or 1


def _ns(at: datetime) -> int:
    return round(at.timestamp() * 1_000_000) * 1000
