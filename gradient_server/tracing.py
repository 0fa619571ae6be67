"""OpenTelemetry's SDK, set up for one process. All other code uses only OpenTelemetry's API."""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread
from typing import TYPE_CHECKING

from opentelemetry import trace

from core.errors import GradientError
from core.monitoring.tracing import fixed_ids
from core.release import release_version
from core.settings import TracingSettings

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

_FLUSH_SECONDS = 5.0  # time limit for sending the last spans: an unreachable collector must not delay a restart


class TracingMissing(GradientError):
    """Tracing is enabled, but its libraries are not installed."""


@contextmanager
def export_spans(settings: TracingSettings) -> Iterator[None]:
    """Export spans while the block runs, if tracing is enabled.

    OpenTelemetry's own variables configure the export (OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_EXPORTER_OTLP_HEADERS,
    OTEL_TRACES_SAMPLER, OTEL_SERVICE_NAME, OTEL_RESOURCE_ATTRIBUTES, …).
    """
    if not settings.enabled:
        yield
        return
    provider = _create_provider()
    trace.set_tracer_provider(provider)
    try:
        yield
    finally:
        # With a limit of our own: the SDK would keep trying for half a minute.
        closing = Thread(target=provider.shutdown, name="last-spans", daemon=True)
        closing.start()
        closing.join(_FLUSH_SECONDS)


def _create_provider() -> "TracerProvider":
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import OTELResourceDetector, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
    except ImportError as error:
        raise TracingMissing(
            "GRADIENT_TRACING__ENABLED is set, but OpenTelemetry is not installed. Run "
            "`pip install 'gradient-jobs[otel]'`, or unset the variable.",
            field="tracing.enabled",
        ) from error

    class Generator(RandomIdGenerator):
        """Random ids, except where the span's creator has chosen its ids."""

        def generate_span_id(self) -> int:
            chosen = fixed_ids()
            return super().generate_span_id() if chosen is None else chosen.span_id

        def generate_trace_id(self) -> int:
            chosen = fixed_ids()
            return super().generate_trace_id() if chosen is None else chosen.trace_id

    ours = Resource({"service.name": "gradient-jobs", "service.version": release_version()})
    # The operator's own variables take precedence.
    resource = Resource.create().merge(ours).merge(OTELResourceDetector().detect())
    provider = TracerProvider(resource=resource, id_generator=Generator(), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return provider
