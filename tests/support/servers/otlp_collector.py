"""A stand-in for an OpenTelemetry collector: takes OTLP over HTTP, and keeps the spans."""

import gzip
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Status


class Span(NamedTuple):
    """One span that came, with ids as hexadecimal digits and times in seconds."""

    name: str
    trace_id: str
    span_id: str
    parent_id: str
    began: float
    ended: float
    failed: bool
    attributes: dict[str, Any]
    resource: dict[str, Any]

    @property
    def trace_parent(self) -> str:
        return f"00-{self.trace_id}-{self.span_id}-"


class OtlpCollector:
    """A collector on a port of its own."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.headers: list[dict[str, str]] = []
        spans, headers = self.spans, self.headers

        class Receiver(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                assert self.path == "/v1/traces"
                assert self.headers["Content-Type"] == "application/x-protobuf"
                spans.extend(_parse_spans(ExportTraceServiceRequest.FromString(body)))
                headers.append(dict(self.headers))
                answer = ExportTraceServiceResponse().SerializeToString()
                self.send_response(200)
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def spans_named(self, name: str) -> list[Span]:
        return [span for span in self.spans if span.name == name]

    def one(self, name: str) -> Span:
        (span,) = self.spans_named(name)
        return span

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _parse_spans(request: ExportTraceServiceRequest) -> list[Span]:
    return [
        Span(
            name=span.name,
            trace_id=span.trace_id.hex(),
            span_id=span.span_id.hex(),
            parent_id=span.parent_span_id.hex(),
            began=span.start_time_unix_nano / 1e9,
            ended=span.end_time_unix_nano / 1e9,
            failed=span.status.code == Status.STATUS_CODE_ERROR,
            attributes=_parse_attributes(span.attributes),
            resource=_parse_attributes(of_resource.resource.attributes),
        )
        for of_resource in request.resource_spans
        for of_scope in of_resource.scope_spans
        for span in of_scope.spans
    ]


def _parse_attributes(attributes: Any) -> dict[str, Any]:
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in attributes}
