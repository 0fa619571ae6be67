"""What the service counts about itself, and the page on which Prometheus reads it.

Requests, bytes and times are counted in this process; everything about jobs, workers and the queue is read from the
database when the page is asked for, so that there is no second record of it.
"""

import platform
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Info,
    ProcessCollector,
    disable_created_metrics,
)
from prometheus_client import generate_latest as render
from sqlalchemy.orm import Session
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from core.jobs import census
from core.jobs.following import Following
from service.figures import Counted
from service.scopes import METHODS, route_of
from service.streams import Streams

__all__ = ["CONTENT_TYPE_LATEST", "Measured", "Measures"]

# A second series beside each one, of when it began: Prometheus tells a restart from the figures themselves.
disable_created_metrics()  # type: ignore[no-untyped-call]  # the library leaves it untyped

_CONTENT = {
    "/jobs/{job_id}/logs": "log",
    "/jobs/{job_id}/logs/raw": "log",
    "/jobs/{job_id}/artifacts/file/{path:file}": "artifact",
    "/jobs/{job_id}/artifacts.zip": "artifact",
}
"""Routes whose answers are what jobs printed or left."""
_FIRST_ERROR = 400
_REQUEST_BUCKETS = (0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_CLAIM_BUCKETS = (0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 4 * 3600.0, 24 * 3600.0)
_SUBMIT_BUCKETS = (0.002, 0.005, 0.01, 0.02, 0.035, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0)


class Measures:
    """What one process of the service counts.

    Args:
        streams: The logs being followed; their number is read when it is asked for.
    """

    def __init__(self, streams: Streams) -> None:
        # Of its own, not the library's global one: two applications in a process do not share their figures.
        self._registry = registry = CollectorRegistry()
        self._requests = Counter(
            "gradient_http_requests", "Requests answered.", ["route", "method", "status"], registry=registry
        )
        self._seconds = Histogram(
            "gradient_http_request_duration_seconds",
            "From a request's arrival to the beginning of its answer.",
            ["route", "method"],
            buckets=_REQUEST_BUCKETS,
            registry=registry,
        )
        self._submit = Histogram(
            "gradient_submit_duration_seconds",
            "From a submission that is read to its committed record.",
            buckets=_SUBMIT_BUCKETS,
            registry=registry,
        )
        self._served = Counter(
            "gradient_served_bytes", "Bytes sent of what jobs printed or left.", ["content"], registry=registry
        )
        for content in sorted(set(_CONTENT.values())):
            self._served.labels(content)
        self._of_jobs = _OfJobs(registry)
        following = Gauge("gradient_log_streams", "Logs being followed now.", registry=registry)
        following.set_function(lambda: streams.active)
        build = Info("gradient_build", "This release.", registry=registry)
        build.info({"version": version("gradient-jobs"), "python": platform.python_version()})
        ProcessCollector(registry=registry)

    @contextmanager
    def submitting(self) -> Iterator[None]:
        """Time a submission; one that is refused is not counted."""
        began = time.perf_counter()
        yield
        self._submit.observe(time.perf_counter() - began)

    def answered(self, scope: Scope, status: int, seconds: float) -> None:
        """Count a request that was answered.

        Args:
            scope: The request's, after it was routed.
            status: Of the answer; 0: the client left before there was one.
            seconds: From its arrival to the beginning of the answer.
        """
        route, method = route_of(scope), scope["method"] if scope["method"] in METHODS else "other"
        self._requests.labels(route, method, str(status)).inc()
        self._seconds.labels(route, method).observe(seconds)

    def sent(self, content: str, size: int) -> None:
        """Count bytes that were sent of what jobs printed or left."""
        self._served.labels(content).inc(size)

    def page(self, session: Session) -> bytes:
        """Everything, in Prometheus' text format.

        Raises:
            StoreUnavailable: The database does not answer.
        """
        self._of_jobs.follow(session)
        counted = CollectorRegistry()
        counted.register(Counted(census.take(session)))
        return render(self._registry) + render(counted)


class _OfJobs:
    """What is counted of jobs as it happens, whichever process made it happen."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._following = Following()
        self._ended = Counter(
            "gradient_jobs_ended",
            "Jobs that ended since this process was first asked.",
            ["state", "backend", "pool"],
            registry=registry,
        )
        self._claims = Histogram(
            "gradient_claim_duration_seconds",
            "From when a job was due to its claim by a worker.",
            ["backend", "pool"],
            buckets=_CLAIM_BUCKETS,
            registry=registry,
        )
        self._stored = Counter(
            "gradient_stored_bytes",
            "Bytes kept of attempts that ended since this process was first asked.",
            ["content"],
            registry=registry,
        )
        for content in sorted(set(_CONTENT.values())):
            self._stored.labels(content)

    def follow(self, session: Session) -> None:
        """Count what happened since the last time."""
        happened = self._following.look(session)
        for labels, number in happened.ended.items():
            self._ended.labels(*labels).inc(number)
        for pool, seconds in happened.claims:
            self._claims.labels(*pool).observe(seconds)
        self._stored.labels("log").inc(happened.log_bytes)
        self._stored.labels("artifact").inc(happened.artifact_bytes)


class Measured:
    """Counts and times every request; plain ASGI, so that streams pass through untouched."""

    def __init__(self, app: ASGIApp, measures: Measures) -> None:
        self._app = app
        self._measures = measures

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = time.perf_counter()
        took: float | None = None
        status = 0
        content: str | None = None

        async def send_counted(message: Message) -> None:
            nonlocal took, status, content
            if message["type"] == "http.response.start":
                took, status = time.perf_counter() - began, message["status"]
                content = _CONTENT.get(route_of(scope)) if status < _FIRST_ERROR else None
            await send(message)
            if content is not None and message["type"] == "http.response.body":
                self._measures.sent(content, len(message.get("body", b"")))

        try:
            await self._app(scope, receive, send_counted)
        finally:
            self._measures.answered(scope, status, time.perf_counter() - began if took is None else took)
