import contextlib
import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Any, Self

from core.db.models.jobs import Job
from core.errors import GradientError, StoreUnavailable
from core.formatting import format_short_duration
from core.jobs import lifecycle, queries
from core.jobs.exit_codes import reason_of_exit
from core.jobs.tracking import metrics
from core.jobs.tracking.metric_limits import MetricLimits
from core.system.inotify import FileWatcher
from worker.attempt import periodic
from worker.attempt.control import AttemptControl
from worker.attempt.disk_quota import DiskQuota
from worker.attempt.job_environment import path_in_workspace
from worker.attempt.outputs.event_files import EventFiles
from worker.attempt.outputs.log_metrics import LogMetrics
from worker.attempt.outputs.log_shipper import LogShipper, SourceFile, read_log_end
from worker.attempt.outputs.metric_rows import MetricRows
from worker.attempt.outputs.metrics_flush import MetricsQueue
from worker.attempt.outputs.metrics_reader import MetricsReader
from worker.attempt.periodic import PeriodicTask
from worker.attempt.scratch import Scratch
from worker.attempt.self_fence import CONTACT_LOST_FILE, CONTACT_LOST_GRACE_SECONDS, contact_lost_detail
from worker.attempt.usage import UsageSampler, UsageTotals, usage_row
from worker.backends.base import Backend, Exit
from worker.context import WorkerContext
from worker.environments.missing_modules import remedy_in
from worker.exec.job_sessions import STOPPING
from worker.runner.control_files import (
    SIGNALLED_FILE,
    STOPPING_FILE,
    may_have_launched,
    read_control,
    read_exit_time,
    write_control_file,
)

logger = logging.getLogger(__name__)

POLL_SECONDS = 1.0
_ENDING_POLL_SECONDS = 0.2
SHORT_BATCH_SECONDS = 0.005
LONG_BATCH_SECONDS = 0.025
_BUSY_POLLS = 40
_OF_THE_START = frozenset({"start.lock", "started", "signals"})  # the wrapper's files that end no wait for the job
_SYNC_PAUSE_FACTOR = 10
_KILL_AGAIN_SECONDS = 5.0
_EVENT_FILES_PAUSE_SECONDS = 2.0
_EVENT_FILES_SECONDS = 30.0
SAMPLE_SECONDS = 2.0
"""Seconds between samples of CPU and memory; one costs about a millisecond for each process of the job."""
_LOG_TAIL_BYTES = 16 * 1024**2  # the end of a log, where a traceback is, is kept whatever its limit
_LONG_SECONDS = 60.0  # running time after which the database is asked in any case: its own clock may have been set
_SHORT_GRACE = frozenset({"lost_contact", "disk_quota", "disk_full"})


@contextlib.contextmanager
def open_log_shipper(context: WorkerContext, job: Job, scratch: Scratch) -> Iterator[LogShipper]:
    """Open the shipper of an attempt's output to its job's log; only one may be open for a job."""
    with ExitStack() as stack:
        writer = context.logs.open_writer(job.id, job.attempt)
        stack.callback(writer.close, sync=False)  # finish syncs once what must be durable
        output = SourceFile(scratch.control / "log")
        stack.callback(output.close)
        yield LogShipper(output, writer, _LOG_TAIL_BYTES)


def with_exit_reason(ended: Exit, job: Job, scratch: Scratch) -> Exit:
    """Return a job's end with the reason that its exit code stands for, unless it has another one."""
    if ended.reason is None and ended.code is not None:
        start = path_in_workspace(job.spec, scratch)
        remedy = partial(remedy_in, scratch.workspace, start, job.spec.command)
        reason, detail = reason_of_exit(ended.code, read_log_end(scratch.control), remedy)
        return replace(ended, reason=reason, detail=detail)
    return ended


class OutputRecorder:
    """Ships output and metrics of one attempt to the stores, while it runs and at its end."""

    def __init__(self, context: WorkerContext, job: Job, scratch: Scratch) -> None:
        self._context = context
        self._job = job
        self._scratch = scratch
        self._log_failed = False
        self._stack = ExitStack()
        self._log: LogShipper | None = None

    def __enter__(self) -> Self:
        lines = SourceFile(self._scratch.control / "metrics.jsonl")
        self._stack.callback(lines.close)
        stored = metrics.StoredSummary()
        patterns = self._job.spec.metric_patterns
        may_be_stored = lines.size or patterns or self._scratch.event_files.exists()
        if self._job.attempt > 1 or may_be_stored:
            with self._context.database.read() as session:
                stored = metrics.summarize_stored(session, self._job.id, self._job.attempt)
        earlier = self._scratch.root / "metrics-earlier"
        self._rows = MetricRows(self._job.id, self._job.attempt, MetricLimits(), stored)
        self.metrics = MetricsReader(lines, self._rows, stored, earlier)
        # Numbers for charts come from one host of a slice.
        prefix = b"[0] " if self._scratch.own_handle(self._job.handle).get("vm", {}).get("hosts") else b""
        self._log_metrics = LogMetrics(patterns, self._rows, stored, prefix=prefix) if patterns else None
        self._event_files = EventFiles(self._scratch, self._rows, stored)
        self._queue = MetricsQueue(self._job, self._rows.left_out)
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
        except (OSError, StoreUnavailable):
            if not self._log_failed:
                logger.warning("output_not_stored", exc_info=True, extra=self._job.log_context())
            self._log_failed = True
            return len(rows)
        self._log_failed = False
        return shipped + len(rows)

    def read_event_files(self) -> None:
        """Queue the scalars of new and grown event files."""
        self._event_files.find()
        if not self._queue.is_full:
            self._enqueue(self._event_files.read())

    def add_usage(self, row: dict[str, Any] | None, totals: dict[str, Any]) -> None:
        """Queue one row of metrics, and the attempt's peaks; without a row, the peaks only at intervals."""
        self._queue.set_totals(totals, at_once=row is not None)
        self._enqueue([] if row is None else [row])

    def set_attempt(self, columns: dict[str, Any]) -> None:
        """Queue columns of the attempt's row."""
        self._queue.set_totals(columns, at_once=True)
        self._enqueue([])

    def flush(self) -> None:
        """Store the metrics read so far."""
        self._context.metrics_flush.flush(self._queue)

    def finish(self) -> int:
        """Ship and store the rest, once nothing writes any more; return the bytes of the job's log."""
        self.metrics.more = True
        while self.metrics.more:
            self._enqueue(self.metrics.read())
            self.flush()
        self.metrics.finish()
        may_have_log = self._job.attempt > 1 or may_have_launched(self._scratch.control)
        has_log = self._has_output() or (may_have_log and self._log_bytes() > 0)
        if has_log:
            self._log_shipper().finish()
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
        return self._log_bytes() if has_log else 0

    def _log_bytes(self) -> int:
        return self._context.logs.size(self._job.id, self._job.attempt)

    def _enqueue_log_metrics(self) -> None:
        if self._log_metrics is not None:
            self._enqueue(self._log_metrics.take())

    def _enqueue(self, rows: Sequence[dict[str, Any]]) -> None:
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
            if self._log_metrics is not None:
                self._log.repeat(self._log_metrics.position, self._log_metrics.feed)
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
        return max(self._pause, _SYNC_PAUSE_FACTOR * (time.monotonic() - began))


class ArtifactSync(PeriodicTask):
    """Copies a running attempt's artifacts to the store: a long copy must not delay the log."""

    def __init__(self, context: WorkerContext, job: Job, scratch: Scratch) -> None:
        self._interval = context.settings.worker.sync_seconds
        super().__init__(self._interval, job.log_context())
        self._job = job
        self._artifacts = context.artifacts
        self._source = scratch.artifacts

    def step(self) -> float:
        """Sync once; the pause after it is longer for a large folder, so that it takes at most a tenth of the time."""
        began = time.monotonic()
        try:
            self._artifacts.sync(self._job.id, self._job.attempt, self._source)
        except (OSError, GradientError):
            logger.warning("artifact_sync_failed", exc_info=True)
        return max(self._interval, _SYNC_PAUSE_FACTOR * (time.monotonic() - began))


class JobMonitor:
    """Follows one attempt from launch to exit.

    `fresh`: this worker has just started it; else its running time and usage are read from the database.
    `ended_at`: when the command ended, by the monotonic clock.
    """

    def __init__(
        self,
        context: WorkerContext,
        job: Job,
        scratch: Scratch,
        control: AttemptControl,
        recorder: OutputRecorder,
        quota: DiskQuota,
        *,
        fresh: bool = False,
    ) -> None:
        self._context, self._quota = context, quota
        self._job = job
        self._requests = control
        self._recorder = recorder
        self._scratch, self.control = scratch, scratch.control
        self._backend: Backend = context.backend(job.backend)
        self._handle = scratch.own_handle(job.handle)
        self._grace = job.spec.stop_grace
        ran, totals = periodic.delay(self._handle.get("began", time.monotonic())), UsageTotals()
        if not fresh:
            with context.database.read() as session:
                ran = periodic.running_seconds(self._handle, queries.running_seconds(session, job))
                totals = UsageTotals.of(queries.attempt(session, job.id, job.attempt))
        self._began = self._ran_at = self.ended_at = time.monotonic() - ran
        self._began_at, self._fresh = time.time() - ran, fresh
        limit = job.spec.time_limit
        self._deadline = self._began + limit if limit is not None else None
        # An earlier worker may have asked the job to end; its grace period starts again.
        stopping = read_control(self.control, STOPPING_FILE) is not None
        self._contact_lost = stopping and read_control(self.control, CONTACT_LOST_FILE) is not None
        self._ending = self._requested_end() if stopping else None
        self._signalled = self._ending is not None and read_control(self.control, SIGNALLED_FILE) is not None
        self._kill_at = time.monotonic() + self._grace
        self._node_exits: dict[str, int | None] = {}
        self._interval = SAMPLE_SECONDS
        self._sample_at = time.monotonic() + self._interval / 4  # not during its start
        self._usage_sampler = UsageSampler(totals, self._interval, ran, on_host=not self._backend.capabilities.billed)
        if not fresh:
            self.correct_record()  # what is shown and billed while it runs

    def correct_record(self) -> None:
        """Let the record of the run have the length that was measured, although a clock was set."""
        ran = self._elapsed()
        if self._fresh and ran < _LONG_SECONDS and not periodic.differ(time.time() - self._began_at, ran):
            return
        with self._context.database.read() as session:
            recorded = queries.running_seconds(session, self._job)
        if periodic.differ(recorded, ran):
            logger.warning("running_time_corrected", extra={"recorded": recorded, "ran": ran})
            self._context.write(lambda session: lifecycle.correct_start(session, self._job, ran))

    def _elapsed(self) -> float:
        return time.monotonic() - self._began

    def run(self) -> Exit:
        """Watch until the job has ended. Raises `Detached`: the worker must release the job, which keeps running."""
        busy = 0
        with FileWatcher(self.control, ignored=_OF_THE_START) as files, self._context.sessions.allowed(self._job):
            self._requests.set_watcher(files)
            try:
                while True:
                    ended, shipped = self._poll()
                    if ended is not None:
                        return ended
                    busy = busy + 1 if shipped else 0
                    self._sample()
                    self._end_if_due()
                    # Small writes are shipped together: a wake-up costs more than a line.
                    if shipped:
                        time.sleep(LONG_BATCH_SECONDS if busy > _BUSY_POLLS else SHORT_BATCH_SECONDS)
                    pause = _ENDING_POLL_SECONDS if self._signalled else POLL_SECONDS
                    files.wait(min(pause, self._sample_at - time.monotonic()))
            finally:
                self._requests.set_watcher(None)

    def _poll(self) -> tuple[Exit | None, int]:
        """Return the job's end, if it has ended, and how much new output was shipped."""
        self._requests.check()
        polled_at = time.monotonic()
        ended = self._backend.ended(self._handle)
        if ended is None:
            self._ran_at = polled_at
        else:
            # Of a job that was asked to end, other processes may have run longer than the command.
            since = self._began if self._ending is None else self._ran_at
            self.ended_at = periodic.end_time(ended.at or read_exit_time(self.control), since)
        shipped = self._recorder.ship()
        if (exits := self._backend.node_exits(self._handle)) != self._node_exits:
            self._node_exits = exits
            self._recorder.set_attempt({"tpu": self._handle["tpu"] | {"exits": exits}})
        if ended is None:
            return None, shipped
        elapsed, row = self.ended_at - self._began, None
        if ended.memory_bytes is not None:
            row = self._usage_sampler.add(elapsed, {"memory_bytes": float(ended.memory_bytes)})
        self._record(elapsed, row or self._usage_sampler.flush())
        return self._with_reason(ended), shipped

    def _with_reason(self, ended: Exit) -> Exit:
        """Return the end with its reason; the worker's own reason to end the job takes precedence."""
        if self._ending is None and self._quota.over is not None:
            self._ending = Exit(None, *self._quota.over)  # ended at once for a full disk
        if self._ending is not None:
            return replace(self._ending, code=ended.code)
        return with_exit_reason(ended, self._job, self._scratch)

    def _end_if_due(self) -> None:
        """Ask the job to end on a request or at a limit; kill it when its grace period is over."""
        now = time.monotonic()
        if self._requests.at_once and self._grace:
            self._grace, self._kill_at = 0, now
        if self._ending is None:
            self._ending = self._requested_end()
            if self._ending is None:
                return
        if not self._signalled:
            self._signalled = True
            grace = min(self._grace, CONTACT_LOST_GRACE_SECONDS) if self._ending.reason in _SHORT_GRACE else self._grace
            self._kill_at = now + grace
            self._context.sessions.end(self._job.id, STOPPING)
            if self._ending.reason == "lost_contact":
                write_control_file(self.control, CONTACT_LOST_FILE, "ended")
            self._backend.signal(self._handle, grace=True)
            write_control_file(self.control, SIGNALLED_FILE, "asked to end")
        if now >= self._kill_at:
            self._backend.signal(self._handle, grace=False)
            self._kill_at = now + _KILL_AGAIN_SECONDS

    def _requested_end(self) -> Exit | None:
        """Return the reason to end the job now; None if it may keep running."""
        if self._requests.stop_requested:
            return Exit(None, "stopped_by_user")
        if self._requests.node_failure is not None:
            return Exit(None, "node_failed", self._requests.node_failure)
        if self._requests.contact_lost or self._contact_lost:
            return Exit(None, "lost_contact", contact_lost_detail(self._context))
        if self._quota.over is not None:
            return Exit(None, *self._quota.over)
        if self._deadline is not None and time.monotonic() >= self._deadline:
            return Exit(None, "time_limit", format_short_duration(self._job.spec.time_limit or 0))
        return None

    def _sample(self) -> None:
        now = time.monotonic()
        if now < self._sample_at:
            return
        self._sample_at = now + self._interval
        elapsed = now - self._began
        values = self._backend.sample(self._handle)
        if values:
            self._record(elapsed, self._usage_sampler.add(elapsed, values))

    def _record(self, elapsed: float, values: dict[str, float] | None) -> None:
        row = usage_row(self._job.id, self._job.attempt, elapsed, values) if values else None
        self._recorder.add_usage(row, self._usage_sampler.totals.columns())
