"""The service's own metrics, in Prometheus' text format.

Requests, bytes and times are counted in each process, and labelled with its number if there are several; everything
about jobs, workers and the queue is read from the database for each scrape, so that it is counted in one place only.
"""

import platform
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

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
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from sqlalchemy.orm import Session
from starlette.types import Scope

from core.jobs.states import TERMINAL, JobState
from core.monitoring import snapshot
from core.monitoring.job_event_totals import EventCounter
from core.monitoring.snapshot import ServiceSnapshot
from core.release import release_version
from service.http.asgi_scope import METHODS, route_pattern
from service.log_stream.registry import StreamRegistry

__all__ = ["CONTENT_TYPE_LATEST", "ServiceMetrics", "exposition", "sent_content"]

# No `_created` series with start times: Prometheus detects a restart from the values themselves.
disable_created_metrics()  # type: ignore[no-untyped-call]  # the library leaves it untyped

_CONTENT_BY_ROUTE = {
    "/jobs/{job_id}/logs": "log",
    "/jobs/{job_id}/logs/raw": "log",
    "/jobs/{job_id}/artifacts/file/{path:file}": "artifact",
    "/jobs/{job_id}/artifacts.zip": "artifact",
}
"""Kind of content by route, of routes that serve jobs' logs and artifacts."""
_FIRST_ERROR = 400
_REQUEST_BUCKETS = (0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_CLAIM_BUCKETS = (0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 4 * 3600.0, 24 * 3600.0)
_SUBMIT_BUCKETS = (0.002, 0.005, 0.01, 0.02, 0.035, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0)

_POOL_LABELS = ["backend", "pool"]
_WORKER_LABELS = ["worker", "host"]
_LIVE_STATES = [state for state in JobState if state not in TERMINAL]


class SnapshotCollector(Collector):
    def __init__(self, snapshot: ServiceSnapshot) -> None:
        self._snapshot = snapshot

    def collect(self) -> Iterable[Metric]:
        yield from _jobs(self._snapshot)
        yield from _queues(self._snapshot)
        yield from _workers(self._snapshot)
        yield from _gpus(self._snapshot)
        repairs = CounterMetricFamily("gradient_sweep_repairs", "What the sweeps repaired.", labels=["kind"])
        for repaired in self._snapshot.repairs:
            repairs.add_metric([repaired.kind], repaired.total)
        yield repairs
        yield GaugeMetricFamily(
            "gradient_outbox_messages", "Wake-up messages that have not been sent.", self._snapshot.outbox
        )
        yield GaugeMetricFamily(
            "gradient_outbox_oldest_seconds", "Age of the oldest unsent wake-up message.", self._snapshot.oldest_message
        )


def _gauge(name: str, text: str, labels: list[str], values: Mapping[Any, float]) -> Metric:
    gauge = GaugeMetricFamily(f"gradient_{name}", text, labels=labels)
    for labelled, value in values.items():
        gauge.add_metric(labelled, value)
    return gauge


def _jobs(snapshot: ServiceSnapshot) -> Iterator[Metric]:
    jobs = {(state, *pool): snapshot.jobs[(state, *pool)] for pool in snapshot.pools for state in _LIVE_STATES}
    yield _gauge("jobs", "Jobs that have not ended.", ["state", *_POOL_LABELS], jobs)
    silent = {pool: snapshot.stale_jobs[pool] for pool in snapshot.pools}
    yield _gauge("jobs_silent", "Jobs on machines without heartbeats.", _POOL_LABELS, silent)


def _queues(snapshot: ServiceSnapshot) -> Iterator[Metric]:
    waiting = {pool: snapshot.count_waiting(pool) for pool in snapshot.pools}
    yield _gauge("queue_jobs", "Jobs that wait.", _POOL_LABELS, waiting)
    oldest = {pool: snapshot.oldest_queued.get(pool, 0.0) for pool in snapshot.pools}
    yield _gauge("queue_oldest_seconds", "Waiting time of the job that has waited longest.", _POOL_LABELS, oldest)
    takers = {pool: snapshot.count_workers(pool) for pool in snapshot.pools}
    yield _gauge("queue_workers", "Workers that offer to run jobs of the pool.", _POOL_LABELS, takers)


def _workers(snapshot: ServiceSnapshot) -> Iterator[Metric]:
    offered = {backend for _, backend, _ in snapshot.jobs} | {
        name for worker in snapshot.workers for name in worker.backends
    }
    offering = {
        (backend,): sum(backend in worker.backends for worker in snapshot.workers) for backend in sorted(offered)
    }
    yield _gauge("workers", "Workers seen in the last minute.", ["backend"], offering)
    workers = {(worker.name, worker.host): worker for worker in (*snapshot.workers, *snapshot.lost_workers)}
    seen = {labels: worker.heartbeat_age for labels, worker in workers.items()}
    yield _gauge("worker_seen_seconds", "Time since a worker was last seen.", _WORKER_LABELS, seen)
    drained = {labels: worker.drained_age is not None for labels, worker in workers.items()}
    yield _gauge("worker_drained", "1 if the worker is drained and claims no jobs.", _WORKER_LABELS, drained)
    slots = {(worker.name, worker.host): worker.slots for worker in snapshot.workers}
    yield _gauge("worker_slots", "Jobs that a worker can run at once.", _WORKER_LABELS, slots)
    held = {labels: worker.held for labels, worker in workers.items()}
    yield _gauge("worker_jobs", "Jobs that a worker is running.", _WORKER_LABELS, held)


def _gpus(taken: ServiceSnapshot) -> Iterator[Metric]:
    # Workers of one host share its GPUs.
    there = {worker.host: worker.gpus for worker in (*taken.lost_workers, *taken.workers) if worker.gpus is not None}
    gpus = {(host,): number for host, number in sorted(there.items())}
    yield _gauge("gpus", "Accelerator GPUs of a host.", ["host"], gpus)
    held = {(host,): taken.gpus[host] for host in sorted(there.keys() | taken.gpus.keys())}
    yield _gauge("gpus_held", "GPUs of a host that are allocated to jobs.", ["host"], held)


class ServiceMetrics:
    """The metrics of one API process. `streams`: the logs being followed; their number is read at each scrape."""

    def __init__(self, streams: StreamRegistry) -> None:
        # Not the library's global registry: two applications in one process must not share their metrics.
        self._registry = registry = CollectorRegistry()
        self._requests = Counter(
            "gradient_http_requests", "Requests answered.", ["route", "method", "status"], registry=registry
        )
        self._seconds = Histogram(
            "gradient_http_request_duration_seconds",
            "Time from a request's arrival to the start of its response.",
            ["route", "method"],
            buckets=_REQUEST_BUCKETS,
            registry=registry,
        )
        self._submit = Histogram(
            "gradient_submit_duration_seconds",
            "Time from a received submission to its committed record.",
            buckets=_SUBMIT_BUCKETS,
            registry=registry,
        )
        self._served = Counter(
            "gradient_served_bytes", "Bytes of logs and artifacts sent.", ["content"], registry=registry
        )
        for content in sorted(set(_CONTENT_BY_ROUTE.values())):
            self._served.labels(content)
        self._job_metrics = _JobMetrics()
        following = Gauge("gradient_log_streams", "Logs being followed now.", registry=registry)
        following.set_function(lambda: streams.active)
        build = Info("gradient_build", "This release.", registry=registry)
        build.info({"version": release_version(), "python": platform.python_version()})
        ProcessCollector(registry=registry)

    @contextmanager
    def time_submission(self) -> Iterator[None]:
        """Time a submission; a refused one is not counted."""
        began = time.perf_counter()
        yield
        self._submit.observe(time.perf_counter() - began)

    def count_request(self, scope: Scope, status: int, seconds: float) -> None:
        """Count a request. `status`: status of the response; 0: the client disconnected before it."""
        route, method = route_pattern(scope), scope["method"] if scope["method"] in METHODS else "other"
        self._requests.labels(route, method, str(status)).inc()
        self._seconds.labels(route, method).observe(seconds)

    def count_sent_bytes(self, content: str, size: int) -> None:
        self._served.labels(content).inc(size)

    def collect(self) -> list[Metric]:
        return list(self._registry.collect())

    def collect_job_events(self, session: Session) -> list[Metric]:
        """Return what was counted of job events, whichever process caused them, since the first call."""
        self._job_metrics.update(session)
        return list(self._job_metrics.registry.collect())


def exposition(counted: Mapping[int, Iterable[Metric]], job_events: Iterable[Metric], session: Session) -> bytes:
    """Render all metrics in Prometheus' text format.

    `session`: reads everything else. Raises `StoreUnavailable`: the database does not answer.
    """
    registry = CollectorRegistry()
    registry.register(_Collected([*_with_process(counted), *job_events]))
    registry.register(SnapshotCollector(snapshot.collect(session)))
    return render(registry)


def _with_process(counted: Mapping[int, Iterable[Metric]]) -> Iterable[Metric]:
    """Label the samples of several processes with their numbers: of a sum, Prometheus would not see a restart."""
    families: dict[str, Metric] = {}
    for number, metrics in counted.items():
        label = {} if len(counted) == 1 else {"process": str(number)}
        for metric in metrics:
            family = families.setdefault(metric.name, Metric(metric.name, metric.documentation, metric.type))
            family.samples += [sample._replace(labels=sample.labels | label) for sample in metric.samples]
    return families.values()


class _Collected(Collector):
    def __init__(self, metrics: list[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        return self._metrics


class _JobMetrics:
    """Counters of job events, whichever process caused them."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self._following = EventCounter()
        self._ended = Counter(
            "gradient_jobs_ended",
            "Jobs that ended since the first scrape of this process.",
            ["state", "backend", "pool"],
            registry=registry,
        )
        self._claims = Histogram(
            "gradient_claim_duration_seconds",
            "Time from when a job was due to its claim by a worker.",
            ["backend", "pool"],
            buckets=_CLAIM_BUCKETS,
            registry=registry,
        )
        self._stored = Counter(
            "gradient_stored_bytes",
            "Bytes stored by attempts that ended since the first scrape of this process.",
            ["content"],
            registry=registry,
        )
        for content in sorted(set(_CONTENT_BY_ROUTE.values())):
            self._stored.labels(content)

    def update(self, session: Session) -> None:
        """Count the events since the last call."""
        happened = self._following.poll(session)
        for labels, number in happened.ended.items():
            self._ended.labels(*labels).inc(number)
        for pool, seconds in happened.claims:
            self._claims.labels(*pool).observe(seconds)
        self._stored.labels("log").inc(happened.log_bytes)
        self._stored.labels("artifact").inc(happened.artifact_bytes)


def sent_content(scope: Scope, status: int) -> str | None:
    """Return the kind of content that a response has, if its bytes are counted."""
    return _CONTENT_BY_ROUTE.get(route_pattern(scope)) if status < _FIRST_ERROR else None
