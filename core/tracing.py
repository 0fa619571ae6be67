"""Traces, by OpenTelemetry's API alone.

Nothing of this has an effect until its SDK is set up, which is the composition root's to do.

What users wrote stays out of spans: they may be sent to a service that others run. An error is told by its type.
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

TRACER = trace.get_tracer("gradient-jobs")
"""Becomes a real one when the SDK is set up, also after this was imported."""
TRACE_PARENT = "traceparent"
TRACE_STATE = "tracestate"

_W3C = TraceContextTextMapPropagator()
_chosen: ContextVar["Ids | None"] = ContextVar("chosen_ids", default=None)


class Ids:
    """Ids of a span that follow from what it is of: whoever knows that can emit the span, or others beneath it.

    Args:
        parent: The span it continues, from `continued`.
        names: What the span is of; the first one names its trace, if `parent` holds no trace.
    """

    def __init__(self, parent: Context, *names: str) -> None:
        above = trace.get_current_span(parent).get_span_context()
        self.trace_id = above.trace_id if above.is_valid else _digest(16, names[0])
        self.span_id = _digest(8, *names)
        self._parent = parent
        self._flags = above.trace_flags if above.is_valid else TraceFlags(TraceFlags.SAMPLED)

    @property
    def within(self) -> Context:
        """The place of spans beneath this one, which need not be there yet."""
        here = SpanContext(self.trace_id, self.span_id, is_remote=True, trace_flags=self._flags)
        return trace.set_span_in_context(NonRecordingSpan(here), Context())

    def emit(
        self, name: str, began: datetime, ended: datetime, attributes: Mapping[str, str | int], error: str | None
    ) -> None:
        """Emit this span, all of it at once. A repeat emits the same span.

        Args:
            name: Of the span.
            began: When it began.
            ended: When it ended.
            attributes: Its attributes.
            error: What went wrong, as a code; None: nothing.
        """
        token = _chosen.set(self)
        try:
            span = TRACER.start_span(name, context=self._parent, attributes=attributes, start_time=_ns(began))
        finally:
            _chosen.reset(token)
        if error is not None:
            span.set_status(Status(StatusCode.ERROR, error))
        span.end(_ns(max(began, ended)))


def chosen_ids() -> Ids | None:
    """The ids that the span being started must have; None: any. For the SDK's generator of ids."""
    return _chosen.get()


def continued(headers: Mapping[str, str]) -> Context:
    """The trace that W3C headers (`traceparent`, `tracestate`) tell of; an empty one if they do not."""
    return _W3C.extract(headers, Context())


def trace_parent() -> str | None:
    """W3C traceparent of the span we are in; None outside of any."""
    headers: dict[str, str] = {}
    _W3C.inject(headers)
    return headers.get(TRACE_PARENT)


def inside(entered: Span) -> AbstractContextManager[Span]:
    """Be in this span, and end it; an exception passes through untold."""
    return trace.use_span(entered, end_on_exit=True, record_exception=False, set_status_on_exception=False)


@contextmanager
def span(
    name: str, context: Context | None = None, attributes: Mapping[str, str | int] | None = None
) -> Iterator[Span]:
    """Be in a span; one that is left by an exception says its type, and not what it says."""
    with TRACER.start_as_current_span(
        name, context, attributes=attributes, record_exception=False, set_status_on_exception=False
    ) as entered:
        try:
            yield entered
        except Exception as error:
            fail(entered, type(error).__name__)
            raise


def note(attributes: Mapping[str, str | int]) -> None:
    """Add attributes to the span we are in."""
    trace.get_current_span().set_attributes(attributes)


def fail(failed: Span, code: str) -> None:
    """Mark a span as one in which something went wrong."""
    failed.set_attribute("error.type", code)
    failed.set_status(Status(StatusCode.ERROR, code))


def _digest(size: int, *names: str) -> int:
    return int.from_bytes(hashlib.sha256("\0".join(names).encode()).digest()[:size], "big") or 1


def _ns(at: datetime) -> int:
    return round(at.timestamp() * 1_000_000) * 1000
