"""OpenTelemetry's SDK, set up for one process: where spans go that the rest tells of through the API alone."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from threading import Thread
from typing import TYPE_CHECKING

from opentelemetry import trace

from core.errors import GradientError
from core.settings import TracingSettings
from core.tracing import chosen_ids

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

_LAST_SECONDS = 5.0
"""Allowed at the end for what is not sent yet: a collector that is away must not hold up a restart."""


class TracingMissing(GradientError):
    """Traces are wanted, but what sends them is not installed."""


@contextmanager
def traced(settings: TracingSettings) -> Iterator[None]:
    """Send spans for as long as the block runs, if the settings want it.

    Where to, with which headers and how many is said by OpenTelemetry's own variables (OTEL_EXPORTER_OTLP_ENDPOINT,
    OTEL_EXPORTER_OTLP_HEADERS, OTEL_TRACES_SAMPLER, OTEL_SERVICE_NAME, OTEL_RESOURCE_ATTRIBUTES, …).

    Raises:
        TracingMissing: The extra is not installed.
    """
    if not settings.enabled:
        yield
        return
    provider = _provider()
    trace.set_tracer_provider(provider)
    try:
        yield
    finally:
        # The SDK itself would go on trying for half a minute.
        closing = Thread(target=provider.shutdown, name="last-spans", daemon=True)
        closing.start()
        closing.join(_LAST_SECONDS)


def _provider() -> "TracerProvider":
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import OTELResourceDetector, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
    except ImportError as error:
        raise TracingMissing(
            "GRADIENT_TRACING__ENABLED is set, but what sends traces is not installed. Run "
            "`pip install 'gradient-jobs[otel]'`, or take the setting away.",
            field="tracing.enabled",
        ) from error

    class Generator(RandomIdGenerator):
        """Random ids, except of spans whose ids follow from what they are of."""

        def generate_span_id(self) -> int:
            chosen = chosen_ids()
            return super().generate_span_id() if chosen is None else chosen.span_id

        def generate_trace_id(self) -> int:
            chosen = chosen_ids()
            return super().generate_trace_id() if chosen is None else chosen.trace_id

    ours = Resource({"service.name": "gradient-jobs", "service.version": version("gradient-jobs")})
    # The operator's own variables have the last word.
    resource = Resource.create().merge(ours).merge(OTELResourceDetector().detect())
    provider = TracerProvider(resource=resource, id_generator=Generator(), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return provider
