"""Tracing without OpenTelemetry's SDK: trace headers, span ids, and no effect until it is set up."""

import ast
from pathlib import Path

import pytest
from opentelemetry import trace

from core.monitoring import tracing
from core.monitoring.tracing import SpanIds

GIVEN = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
ROOT = Path(__file__).parents[3]


def place(context):
    return trace.get_current_span(context).get_span_context()


def test_without_the_sdk_there_is_no_trace():
    with tracing.span("submit") as span:
        tracing.set_attributes({"gradient.job.id": "j1"})
        assert not span.is_recording()
        assert tracing.trace_parent() is None


def test_a_trace_that_somebody_began_is_passed_on_all_the_same():
    span = tracing.TRACER.start_span("GET", tracing.extract_context({"traceparent": GIVEN}))
    with tracing.use_span(span), tracing.span("submit"):
        assert tracing.trace_parent() == GIVEN
    assert tracing.trace_parent() is None


@pytest.mark.parametrize(
    "header", ["", "00-0-0-00", "x" * 500, GIVEN.replace("0af7651916cd43dd8448eb211c80319c", "0" * 32)]
)
def test_a_header_that_is_none_begins_no_trace(header):
    assert not place(tracing.extract_context({"traceparent": header})).is_valid


def test_a_trace_that_is_not_sampled_stays_so():
    ids = SpanIds(tracing.extract_context({"traceparent": GIVEN[:-2] + "00"}), "j1", "1")
    assert place(ids.child_context).trace_flags == 0


def test_only_the_composition_root_knows_the_sdk():
    for package in ("core", "service", "worker"):
        for path in (ROOT / package).rglob("*.py"):
            imported = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ImportFrom)]
            names = [node.module or "" for node in imported]
            assert not [name for name in names if name.startswith(("opentelemetry.sdk", "opentelemetry.exporter"))], (
                path
            )
