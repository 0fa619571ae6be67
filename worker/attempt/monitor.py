import logging
import time
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from sqlalchemy import ColumnElement, case
from sqlalchemy.orm import InstrumentedAttribute

from core.db.database import now
from core.db.models.jobs import Job
from core.errors import GradientError, StoreUnavailable
from core.jobs import cloud_resources, lifecycle, queries
from core.jobs.costs import limits
from core.jobs.exit_codes import reason_of_exit
from core.system.inotify import FileWatcher
from worker.attempt.control import AttemptControl
from worker.attempt.disk_quota import DiskQuota, Launched
from worker.attempt.end_warning import EndWarning
from worker.attempt.job_environment import path_in_workspace
from worker.attempt.outputs.log_shipper import read_log_end
from worker.attempt.outputs.recorder import OutputRecorder
from worker.attempt.periodic import PAUSE_FACTOR, PeriodicTask
from worker.attempt.scratch import Scratch
from worker.attempt.self_fence import CONTACT_LOST_FILE, CONTACT_LOST_GRACE_SECONDS, contact_lost_detail
from worker.attempt.usage import UsageSampler, UsageTotals
from worker.backends.base import Exit, Handle
from worker.backends.job_processes import boot_id
from worker.context import WorkerContext
from worker.environments.missing_modules import remedy_in
from worker.exec.job_sessions import STOPPING
from worker.runner.control_files import (
    SIGNALLED_FILE,
    STOPPING_FILE,
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
_KILL_AGAIN_SECONDS = 5.0
SAMPLE_SECONDS = 2.0
"""Seconds between samples of CPU and memory; one costs about a millisecond for each process of the job."""
_LONG_SECONDS = 60.0  # running time after which the database is asked in any case: its own clock may have been set
TOLERANCE_SECONDS = 5.0  # differences to the database's clock that delays of messages explain
_NOTICED_SECONDS = 1.0  # what is recorded sooner after it happened gets the time of its record
_MARKS_OF_THE_END = STOPPING_FILE, CONTACT_LOST_FILE, SIGNALLED_FILE
_SHORT_GRACE = frozenset({"lost_contact", "disk_quota", "disk_full"})


def with_exit_reason(ended: Exit, job: Job, scratch: Scratch) -> Exit:
    """Return a job's end with the reason that its exit code stands for, unless it has another one."""
    if ended.reason is None and ended.code is not None:
        start = path_in_workspace(job.spec, scratch)
        remedy = partial(remedy_in, scratch.workspace, start, job.spec.command)
        reason, detail = reason_of_exit(ended.code, read_log_end(scratch.control), remedy)
        return replace(ended, reason=reason, detail=detail)
    return ended


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
        return max(self._interval, PAUSE_FACTOR * (time.monotonic() - began))


class JobMonitor:
    """Follows one attempt from launch to exit.

    `fresh`: this worker has just started it; else its running time and usage are read from the database.
    `ended_at`: when the command ended, by the monotonic clock.
    """

    def __init__(
        self,
        context: WorkerContext,
        launched: Launched,
        control: AttemptControl,
        recorder: OutputRecorder,
        quota: DiskQuota,
        *,
        fresh: bool = False,
    ) -> None:
        self._context = context
        self._quota, self._guards = quota, recorder.guards
        self._requests = control
        self._recorder = recorder
        self._job, self._scratch, self._backend, self._handle = launched
        job, self.control = self._job, self._scratch.control
        self._grace = job.spec.stop_grace
        ran, totals = delay(self._handle.get("began", time.monotonic())), UsageTotals()
        self._deadline = limits.deadline(job)
        if not fresh or self._backend.capabilities.billed:
            with context.database.read() as session:
                self._deadline = limits.deadline(job, cloud_resources.of_attempt(session, job))
                if not fresh:
                    ran = running_seconds(self._handle, queries.running_seconds(session, job))
                    totals = UsageTotals.of(queries.attempt(session, job.id, job.attempt))
        self._began = self._ran_at = self.ended_at = time.monotonic() - ran
        self._began_at, self._fresh = time.time() - ran, fresh
        # An earlier worker may have asked the job to end; its grace period starts again.
        marks = {name for name in _MARKS_OF_THE_END if read_control(self.control, name)}
        stopping = STOPPING_FILE in marks
        self._contact_lost = stopping and CONTACT_LOST_FILE in marks
        self._ending = self._requested_end() if stopping else None
        self._signalled = self._ending is not None and SIGNALLED_FILE in marks
        self._kill_at = time.monotonic() + self._grace
        self._warning = EndWarning(context, launched)
        self._node_exits: dict[str, int | None] = {}
        self._sample_at = time.monotonic() + SAMPLE_SECONDS / 4  # not during its start
        self._usage_sampler = UsageSampler(totals, SAMPLE_SECONDS, ran, on_host=not self._backend.capabilities.billed)
        if not fresh:
            self.correct_record()  # what is shown and billed while it runs

    def correct_record(self) -> None:
        """Let the record of the run have the length that was measured, although a clock was set."""
        ran = self._elapsed()
        if self._fresh and ran < _LONG_SECONDS and not differ(time.time() - self._began_at, ran):
            return
        with self._context.database.read() as session:
            recorded = queries.running_seconds(session, self._job)
        if differ(recorded, ran):
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
                        self._warning.close()
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
            self.ended_at = end_time(ended.at or read_exit_time(self.control), since)
        shipped = self._recorder.ship()
        if (exits := self._backend.node_exits(self._handle)) != self._node_exits:
            self._node_exits = exits
            self._recorder.set_attempt({"allocation": self._handle["allocation"] | {"exits": exits}})
        if ended is None:
            return None, shipped
        elapsed, values = self.ended_at - self._began, None
        if ended.memory_bytes is not None:
            values = self._usage_sampler.add(elapsed, {"memory_bytes": float(ended.memory_bytes)})
        self._recorder.add_usage(elapsed, values or self._usage_sampler.flush(), self._usage_sampler.totals)
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
            ending = self._requested_end()
            if ending is None:
                self._warn_if_due()
            if ending is None or self._backend.ended(self._handle) is not None:  # before anyone asked it to
                return
            self._ending = ending
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
        if self._deadline is not None and self._elapsed() >= self._deadline.seconds and not self._extended():
            return Exit(None, self._deadline.reason, self._deadline.detail)
        return None

    def _warn_if_due(self) -> None:
        if self._deadline is None:
            self._warning.send_if_due(None, "")
            return
        if self._warning.is_due(self._began + self._deadline.seconds):
            self._extended()  # others may have left over more than its share
        what = "its ceiling" if self._deadline.reason == "cost_limit" else "its time limit"
        self._warning.send_if_due(self._began + self._deadline.seconds, what)

    def _extended(self) -> bool:
        """Let the job run on with what other jobs of its ceiling or budget have left over, if there is any."""
        capabilities = self._backend.capabilities
        if self._deadline is None or self._job.run_limit is None or capabilities.own_queue or capabilities.billed:
            return False
        with suppress(StoreUnavailable):
            self._deadline = self._context.extend(self._job) or self._deadline
        return self._elapsed() < self._deadline.seconds

    def _sample(self) -> None:
        now = time.monotonic()
        if now < self._sample_at:
            return
        self._sample_at = now + SAMPLE_SECONDS
        elapsed = now - self._began
        values = self._backend.sample(self._handle)
        if values:
            self._recorder.add_usage(elapsed, self._usage_sampler.add(elapsed, values), self._usage_sampler.totals)
        if self._guards.active and self._ending is None:
            with suppress(StoreUnavailable):  # it is found again with the next sample
                self._check_guards(values)

    def _check_guards(self, values: dict[str, float]) -> None:
        guards, in_use = self._guards, self._context.sessions.in_use(self._job.id)
        guards.sample(values, self._backend.written_bytes(self._handle), in_use=in_use)
        guards.set_disk(*self._quota.room())
        for firing in list(guards.due()):
            self._recorder.tell(firing)
            guards.fired(firing)
            if firing.reason is not None and firing.action != "notify":
                self._quota.end_with(firing.reason, firing.evidence)


def began() -> dict[str, Any]:
    """Return the keys of a handle that record that its command begins now."""
    return {"began": time.monotonic(), "boot": boot_id()}


def running_seconds(handle: Handle, recorded: float) -> float:
    """Return how long the command of a handle has run, by a clock that nobody sets and that stands still in suspension.

    `recorded`: the time by the database's clock; used if the command began before the machine last started.
    """
    return time.monotonic() - handle["began"] if handle.get("boot") == boot_id() else recorded


def differ(recorded: float, measured: float) -> bool:
    """Return whether a recorded time is wrong, because a clock was set."""
    return abs(recorded - measured) > TOLERANCE_SECONDS


def end_time(at: float | None, since: float) -> float:
    """Return when a command ended, by the monotonic clock, whose end may be noticed late.

    `at`: Unix time of the end, if known. It counts only between `since` and now: else a clock was set meanwhile.
    """
    current = time.monotonic()
    end = current if at is None else current - (time.time() - at)
    return max(since, end) if since - TOLERANCE_SECONDS <= end <= current else current


def delay(at: float) -> float:
    """Return the seconds since a time of the monotonic clock; 0 if it is as good as now."""
    passed = time.monotonic() - at
    return passed if passed >= _NOTICED_SECONDS else 0.0


def database_time(at: float | None, earliest: InstrumentedAttribute[Any] | None = None) -> ColumnElement[Any] | None:
    """Return a time of the monotonic clock as one of the database's; None if it is as good as now.

    `earliest`: column with a time that the result is not before.
    """
    passed = delay(at) if at is not None else 0.0
    if not passed:
        return None
    time_then = now(-passed)
    return time_then if earliest is None else case((earliest > time_then, earliest), else_=time_then)
