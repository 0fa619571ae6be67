"""Output and metrics of one attempt, on their way to the stores."""

import contextlib
import logging
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from functools import partial
from types import TracebackType
from typing import Any, Self

from core.db.models.jobs import Job
from core.errors import StoreUnavailable
from core.jobs.tracking import job_notes, metrics, trackers
from core.jobs.tracking.metric_limits import MetricLimits
from core.jobs.tracking.trackers import LinkFinder
from core.monitoring.logging import bind
from worker.attempt.guards import Firing, Guards
from worker.attempt.outputs.event_files import EventFiles
from worker.attempt.outputs.log_metrics import LogMetrics
from worker.attempt.outputs.log_shipper import LogShipper, SourceFile
from worker.attempt.outputs.metric_rows import MetricRows
from worker.attempt.outputs.metrics_flush import MetricsQueue
from worker.attempt.outputs.metrics_reader import MetricsReader
from worker.attempt.periodic import PAUSE_FACTOR, PeriodicTask
from worker.attempt.scratch import Scratch
from worker.attempt.usage import UsageTotals
from worker.context import WorkerContext
from worker.runner.control_files import may_have_launched

logger = logging.getLogger(__name__)

_EVENT_FILES_PAUSE_SECONDS = 2.0
_EVENT_FILES_SECONDS = 30.0
_LOG_TAIL_BYTES = 16 * 1024**2  # the end of a log, where a traceback is, is kept whatever its limit
_BUILD_PAUSE_SECONDS = 0.5


@contextlib.contextmanager
def open_log_shipper(context: WorkerContext, job: Job, scratch: Scratch) -> Iterator[LogShipper]:
    """Open the shipper of an attempt's output to its job's log; only one may be open for a job."""
    with ExitStack() as stack:
        writer = context.logs.open_writer(job.id, job.attempt)
        stack.callback(writer.close, sync=False)  # finish syncs once what must be durable
        output = SourceFile(scratch.control / "log")
        stack.callback(output.close)
        yield LogShipper(output, writer, _LOG_TAIL_BYTES)


class OutputRecorder:
    """Ships output and metrics of one attempt to the stores, while it runs and at its end."""

    def __init__(self, context: WorkerContext, job: Job, scratch: Scratch) -> None:
        self.guards = Guards(job.spec, accelerators=bool(job.gpu_count or "device" in (job.handle or {})))
        self._context = context
        self._job = job
        self._scratch = scratch
        self._log_failed = False
        self._stack = ExitStack()
        self._log: LogShipper | None = None
        self._reading = threading.Lock()

    def __enter__(self) -> Self:
        lines = SourceFile(self._scratch.control / "metrics.jsonl")
        self._stack.callback(lines.close)
        stored = metrics.StoredSummary()
        patterns = self._job.spec.metric_patterns
        may_be_stored = lines.size or patterns or self._scratch.event_files.exists()
        if self._job.attempt > 1 or may_be_stored:
            with self._context.database.read() as session:
                stored = metrics.summarize_stored(session, self._job.id, self._job.attempt, self.guards.read_losses)
        earlier = self._scratch.root / "metrics-earlier"
        self._rows = MetricRows(self._job.id, self._job.attempt, MetricLimits(), stored)
        self.metrics = MetricsReader(lines, self._rows, stored, earlier)
        # Numbers for charts come from one host of a slice.
        prefix = b"[0] " if self._scratch.own_handle(self._job.handle).get("vm", {}).get("hosts") else b""
        guards, reads_log = self.guards, bool(patterns or self.guards.expressions)
        log_metrics = LogMetrics(patterns, self._rows, stored, prefix=prefix, read_line=guards.read_line)
        self._log_metrics = log_metrics if reads_log else None
        self._links = LinkFinder() if job_notes.uses_tracker(self._job.spec) else None
        self._recorded = 0
        self._event_files = EventFiles(self._scratch, self._rows, stored)
        self._queue = MetricsQueue(self._job, self._rows.left_out)
        self._diverged = self.guards.diverged
        if stored.offsets:  # of another worker, which may have stored more than this, or less
            self._queue.set_totals({"diverged": self._diverged}, at_once=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._rows.left_out.finish()
        with contextlib.suppress(StoreUnavailable):  # the collection reads again what the job wrote
            self.flush()
        self._stack.__exit__(kind, error, trace)

    def ship(self) -> int:
        """Ship new output and metrics; return how much. Output that cannot be stored (full disk) is tried again."""
        # While the database is unavailable, or slower than the job, unread metrics wait in the job's file.
        rows = [] if self._queue.is_full else self.metrics.read()
        self._enqueue(rows)
        if self._log is None and not self._has_output():
            return len(rows)
        try:
            shipped = self._log_shipper().ship()
            self._enqueue_log_metrics()
            self._add_links()
        except (OSError, StoreUnavailable):
            if not self._log_failed:
                logger.warning("output_not_stored", exc_info=True, extra=self._job.log_context())
            self._log_failed = True
            return len(rows)
        self._log_failed = False
        if shipped:
            self.guards.record_output()
        return shipped + len(rows)

    def read_event_files(self) -> None:
        """Queue the scalars of new and grown event files."""
        self._event_files.find()
        if not self._queue.is_full:
            self._enqueue(self._event_files.read())

    def add_usage(self, elapsed: float, values: dict[str, float] | None, totals: UsageTotals) -> None:
        """Queue usage after so many seconds, and the attempt's peaks; without values, the peaks only at intervals."""
        self._queue.set_totals(totals.columns(), at_once=bool(values))
        row = {"source": "system", "offset": int(elapsed * 1000), "step": None, "at": datetime.now(UTC)}
        named = {"job_id": self._job.id, "attempt": self._job.attempt}
        self._enqueue([named | row | {"values": values}] if values else [])

    def set_attempt(self, columns: dict[str, Any]) -> None:
        """Queue columns of the attempt's row."""
        self._queue.set_totals(columns, at_once=True)
        self._enqueue([])

    def tell(self, firing: Firing) -> None:
        """Record what a guard found, by which receivers are told of it."""
        about = firing.about or firing.evidence
        self._context.write(
            lambda session: job_notes.add_firing(session, self._job, firing.reason, firing.evidence, about)
        )

    def flush(self) -> None:
        """Store the metrics read so far."""
        self._context.metrics_flush.flush(self._queue)

    def finish(self) -> int:
        """Ship and store the rest, once nothing writes any more; return the bytes of the job's log."""
        self.metrics.more = True
        while self.metrics.more:
            self._enqueue(self.metrics.read())
            self.flush()
        self._enqueue(self.metrics.finish())
        self.flush()
        may_have_log = self._job.attempt > 1 or may_have_launched(self._scratch.control)
        has_log = self._has_output() or (may_have_log and self._log_bytes() > 0)
        if has_log:
            self._log_shipper().finish()
            self._add_links()
        if self._log_metrics is not None:
            self._log_metrics.finish()
            self._enqueue_log_metrics()
            self.flush()
        until = time.monotonic() + _EVENT_FILES_SECONDS
        self._event_files.find()
        self._event_files.more = True
        while self._event_files.more and time.monotonic() < until:
            self._enqueue(self._event_files.read())
            self.flush()
        if self._event_files.more:
            self._rows.left_out["event_files_long"] = "The event files are too long to be read completely."
        self._enqueue(self._rows.finish())
        self.flush()
        for firing in self.guards.logged:
            self.tell(firing)
        return self._log_bytes() if has_log else 0

    def _log_bytes(self) -> int:
        return self._context.logs.size(self._job.id, self._job.attempt)

    def _enqueue_log_metrics(self) -> None:
        if self._log_metrics is not None:
            self._enqueue(self._log_metrics.take())

    def _add_links(self) -> None:
        if self._links is not None and len(self._links.links) > self._recorded:
            links = list(self._links.links)
            self._context.write(partial(trackers.add_links, job=self._job, links=links))
            self._recorded = len(links)

    def _enqueue(self, rows: Sequence[dict[str, Any]]) -> None:
        with self._reading:
            self.guards.read_rows(rows)
            if self.guards.diverged != self._diverged:
                self._diverged = self.guards.diverged
                self._queue.set_totals({"diverged": self._diverged}, at_once=True)
        self._queue.add(rows)
        if not self._queue.is_empty:
            self._context.metrics_flush.request(self._queue)

    def _has_output(self) -> bool:
        try:
            return (self._scratch.control / "log").lstat().st_size > 0
        except OSError:
            return False

    def _log_shipper(self) -> LogShipper:
        """Open the job's log on first use: on a full disk that fails, and the job must be watched nevertheless."""
        if self._log is None:
            self._log = self._stack.enter_context(open_log_shipper(self._context, self._job, self._scratch))
            followers = [follower.feed for follower in (self._log_metrics, self._links) if follower is not None]
            if followers:
                position = 0 if self._log_metrics is None else self._log_metrics.position

                def feed_all(offset: int, data: bytes) -> None:
                    for feed in followers:
                        feed(offset, data)

                self._log.repeat(position, feed_all)
        return self._log


class EventFileReads(PeriodicTask):
    """Reads a running attempt's event files: a search of large folders must not delay the log."""

    def __init__(self, job: Job, recorder: OutputRecorder) -> None:
        super().__init__(_EVENT_FILES_PAUSE_SECONDS, job.log_context())
        self._recorder = recorder

    def step(self) -> float:
        """Read once; the pause after it is longer for large folders and files."""
        began = time.monotonic()
        self._recorder.read_event_files()
        return max(self._pause, PAUSE_FACTOR * (time.monotonic() - began))


@contextlib.contextmanager
def build_log(context: WorkerContext, job: Job, scratch: Scratch) -> Iterator[None]:
    """Ship the output of a build to the job's log until the block is left; the watch ships the rest."""
    ended = threading.Event()

    def ship() -> None:
        bind(**job.log_context())
        try:
            with OutputRecorder(context, job, scratch) as recorder:
                while not ended.wait(_BUILD_PAUSE_SECONDS):
                    if recorder.ship():
                        context.logs.notify_followers(job.id)
        except Exception:  # the build goes on; at the latest, closing the attempt ships the whole log
            logger.warning("build_log_not_shipped", exc_info=True)

    thread = threading.Thread(target=ship, name=f"build-log-{job.id}", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
