"""Cached responses with a job's metrics, so that those of a large job are read rarely."""

import hashlib
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

from cachetools import LRUCache
from sqlalchemy.orm import Session

from core.db.models.jobs import Job
from core.jobs.tracking import metrics
from core.jobs.tracking.metric_limits import MetricLimits
from core.jobs.tracking.metrics import MAX_SERIES, OwnCount, RowCount, XRange
from service.presenters.outputs.downsample import series_view
from service.presenters.outputs.run_curves import CurvesQuery, curves_line
from service.schemas.outputs import Metrics, SeriesView

MAX_POINTS = 100_000  # largest number of points in one response, of all series together
READ_VALUES = 200_000  # values that one request reads of each source: about a second of work. Longer series are sampled
_MIN_POINTS = 3
_MAX_BYTES = 64 * 1024**2
_LARGE_ROWS = 5000
_LARGE_SECONDS = 10.0
_LOCKS = 64


class _Key(NamedTuple):
    job_id: str
    name: str | None
    max_points: int
    within: XRange | None
    attempt: int | None
    curves_by: str = ""  # the horizontal axis, if they are the curves of a run


@dataclass(frozen=True, slots=True)
class JobMetricsResponse:
    etag: str
    body: bytes  # JSON of `service.schemas.outputs.Metrics`
    summary: list[SeriesView]  # its series without their points
    left_out: str | None  # sentences on what is left out, and by which limit; None: nothing
    made_at: float = field(default_factory=time.monotonic)


class JobMetricsCache:
    """Builds and caches responses with metrics, one at a time for each job.

    A cached response is used until its metrics change; that of a large job for at least 10 seconds.
    """

    def __init__(self, settings: MetricLimits) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._build_locks = [threading.Lock() for _ in range(_LOCKS)]
        self._responses: LRUCache[_Key, JobMetricsResponse] = LRUCache(_MAX_BYTES, lambda answer: len(answer.body))

    def get(
        self,
        session: Session,
        job: Job,
        name: str | None,
        max_points: int,
        within: XRange | None = None,
        *,
        attempt: int | None = None,
    ) -> JobMetricsResponse:
        """Return the metrics of a job or of an attempt, each downsampled to `max_points` keeping its peaks.

        With `within`, only those in a range.
        """
        key = _Key(job.id, name, max_points, within, attempt)
        with self._build_locks[hash(job.id) % _LOCKS]:
            extents = metrics.count_rows(session, job.id, within, attempt)
            notices = metrics.limit_messages(session, job.id)
            if job.logs_removed_at is not None:
                notices.append("The metrics were deleted together with the job's log.")
            etag = f'"{hashlib.sha256(repr((key, extents, notices)).encode()).hexdigest()[:32]}"'
            cached = self._cached(key)
            large = sum(extent.rows for extent in extents) > _LARGE_ROWS
            if cached is not None and (
                cached.etag == etag or (large and time.monotonic() - cached.made_at < _LARGE_SECONDS)
            ):
                return cached
            return self._store(key, self._build(session, key, extents, notices, etag))

    def get_curves(self, session: Session, job: Job, count: OwnCount, query: CurvesQuery) -> bytes:
        """Return a run's own metrics for the page that compares runs."""
        key = _Key(job.id, None, query.points, None, None, query.axis)
        etag = repr((job.started_at, count, query.most_values))
        cached = self._cached(key) if query.within is None else None
        if cached is not None and cached.etag == etag:
            return cached.body
        with_times = query.axis != "step"
        own_rows = metrics.read_own_rows(session, job.id, count, most_values=query.most_values, with_times=with_times)
        body = curves_line(job, own_rows, query)
        return body if query.within else self._store(key, JobMetricsResponse(etag, body, [], None)).body

    def _build(
        self, session: Session, key: _Key, extents: list[RowCount], notices: list[str], etag: str
    ) -> JobMetricsResponse:
        job_id, name, max_points, within, attempt, _ = key
        columns = metrics.read(
            session,
            job_id,
            extents,
            most_values=READ_VALUES,
            name=name,
            within=within,
            attempt=attempt,
            with_extremes=True,
        )
        points_per_series = max(_MIN_POINTS, min(max_points, MAX_POINTS // max(1, len(columns))))
        parts: list[bytes] = []
        summary: list[SeriesView] = []
        for series in columns:
            view = series_view(series, points_per_series)
            parts.append(view.model_dump_json(by_alias=True).encode())
            summary.append(view.model_copy(update={"points": []}))
        if points_per_series < max_points:
            notices.append(
                f"Series have {points_per_series:,} points: a response has at most {MAX_POINTS:,}. Request one series."
            )
        if columns.sampled:
            notices.append(
                "Rows were left out at even intervals, except the lowest and highest values: a response is based "
                f"on about {READ_VALUES:,} values per source. Request a range of steps or times."
            )
        if columns.full:
            notices.append(f"A response has at most {MAX_SERIES:,} series: request one by name.")
        left_out = " ".join(notices) or None
        end = Metrics(series=[], left_out=left_out).model_dump_json(by_alias=True)
        body = b'{"series":[' + b",".join(parts) + end.removeprefix('{"series":[').encode()
        return JobMetricsResponse(etag, body, summary, left_out)

    def _cached(self, key: _Key) -> JobMetricsResponse | None:
        with self._lock:
            return self._responses.get(key)

    def _store(self, key: _Key, answer: JobMetricsResponse) -> JobMetricsResponse:
        with self._lock, suppress(ValueError):  # it is larger than all that is kept
            self._responses[key] = answer
        return answer
