"""One task for each log and process that reads the log and the job's row, for all followers of the log."""

import asyncio
import json
import logging
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from contextvars import Context
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

import anyio
import anyio.to_thread

from core.errors import GradientError, JobNotFound, StoreUnavailable, Unauthorized
from core.formatting import iso_time, iso_time_ms
from core.jobs import queries
from core.jobs.scheduling.wait_status import WaitStatus, wait_statuses
from core.jobs.states import JobState
from core.storage.joblogs.store import LogLine
from core.storage.prune import remove_late_outputs
from core.storage.retention import OutputKind
from service.app_state import AppState
from service.log_stream.registry import WakeEvents
from service.presenters.jobs import job_reason, public_state
from service.presenters.outputs.removed import find_removed

logger = logging.getLogger(__name__)

AUTHORIZE_SECONDS = 3.0
_PAGE_LINES = 2000
_PAGE_BYTES = 256 * 1024
_KEPT_BYTES = 64 * 1024  # events kept for followers that are a little behind, besides those that were read last
LINES_AFTER_GAP = 100
AFTER_GAP_SECONDS = 0.2
ROW_POLL_SECONDS = 1.0
_QUEUE_POLL_SECONDS = 5.0
_MIN_POLL_SECONDS = 0.01
_BURST_SECONDS = 0.05
OPEN_SECONDS = 0.5  # age of a line that is shown unfinished: many are written in two parts
_STOP_GRACE_SECONDS = 1.0
_WOKEN_AT_ONCE = 16
"""Followers woken in one turn of the event loop; with more of them, half of its time is left to other requests."""

T = TypeVar("T")


class Reading(NamedTuple):
    """The news of a poll, as events, except for the log's length and its unfinished last line."""

    lines: list[bytes]
    total: int
    partial: str
    phase: bytes
    end: bytes  # the last events of a job that has ended
    error: bytes  # the last event of a job that was deleted


class Authorization:
    """The check of a key or a session, which its followers share; `authorize` raises an error once it is over."""

    def __init__(self, authorize: Callable[[], object]) -> None:
        self._authorize = authorize
        self._next_check_at = time.monotonic() + AUTHORIZE_SECONDS
        self.refusal = b""  # the last event for a client that may not follow any more; empty if it may

    def check(self) -> None:
        """Check if it is due; may query the database, so it runs in a thread."""
        if self.refusal or time.monotonic() < self._next_check_at:
            return
        self._next_check_at = time.monotonic() + AUTHORIZE_SECONDS
        try:
            self._authorize()
        except (Unauthorized, JobNotFound) as error:
            self.refusal = format_error(error, 401 if isinstance(error, Unauthorized) else 404)
        except StoreUnavailable:  # the next check may succeed
            pass


class Subscriber(Protocol):
    """A client that follows the log, as far as its feed knows it."""

    authorization: Authorization
    max_behind: int | None
    woken: asyncio.Event
    cancel: Callable[[], None]

    @property
    def silent(self) -> bool: ...


class JobFeed:
    """The events of one job's log and row from now on, read once for all followers, in one thread at a time."""

    def __init__(self, app_state: AppState, job_id: str) -> None:
        self._app_state = app_state
        self._job_id = job_id
        self._reader = app_state.logs.reader(job_id)
        self.followers: dict[Subscriber, None] = {}
        self._task: asyncio.Task[None] | None = None
        self._next_row_poll_at = 0.0
        self._next_queue_poll_at = 0.0
        self._notified_at = 0
        self._waits: WaitStatus | None = None
        self._phase: dict[str, Any] = {}
        self._row = self.reading = Reading([], 0, "", b"", b"", b"")
        self._read_to: int | None = None
        self._open_line = -1, 0.0
        self._skipped = False
        self.kept: list[bytes] = []
        self._last = 0
        self.closed = False  # true if nothing more will be read

    def add(self, follower: Subscriber) -> None:
        """Read for a follower, too."""
        self.followers[follower] = None
        if self._task is None:
            self._task = asyncio.create_task(self._run(), context=Context())

    def remove(self, follower: Subscriber) -> None:
        """Stop reading for a follower; without any, the feed ends."""
        del self.followers[follower]
        if self._task is not None and not self.followers:
            self.closed = True
            self._task.cancel()
            feeds = self._app_state.streams.feeds
            if feeds.get(self._job_id) is self:
                del feeds[self._job_id]

    async def lines_after(self, after: int) -> list[bytes]:
        """Return the next lines: those kept, or else a page of the log; none if they will be read in a moment."""
        behind = self._last - after
        if 0 <= behind <= len(self.kept):
            return self.kept[len(self.kept) - behind :]
        return await self._run_in_reader_thread(partial(self._read_page, after))

    async def _run_in_reader_thread(self, call: Callable[[], T]) -> T:
        async with self._app_state.streams.reads:
            return await self._app_state.lanes.following.run(call)

    async def _run(self) -> None:
        try:
            folder = await self._run_in_reader_thread(self.create_folder)
            with self._app_state.streams.watch_folder(folder) as wakes:
                await self._poll_until_stopped(wakes)
        except Exception:  # the clients connect again
            logger.exception("log_not_read", extra={"job_id": self._job_id})
        finally:
            self.closed = True
            for follower in self.followers:
                follower.woken.set()
                # One that waits for a client that does not read ends only by cancellation.
                asyncio.get_running_loop().call_later(_STOP_GRACE_SECONDS, follower.cancel)

    async def _poll_until_stopped(self, wakes: WakeEvents) -> None:
        limiter = PollRateLimiter()
        while not wakes.stopped.is_set():
            wakes.changed.clear()
            polled_at = time.monotonic()
            earliest = limiter.next_poll_at(polled_at)
            reading = await self._run_in_reader_thread(self.poll)
            await self.publish(reading)
            until = self._next_row_poll_at
            if self._skipped:  # the clients cannot keep up
                earliest = polled_at + AFTER_GAP_SECONDS
            elif self._last < reading.total:
                earliest = until = polled_at
            await _wait_for_change(wakes, until, earliest)

    async def publish(self, reading: Reading) -> None:
        """Keep the lines, and wake the followers, a few at a time."""
        new = len(reading.lines)
        kept = [*(self.kept if self._last + new == self._read_to else []), *reading.lines]
        size = sum(map(len, kept))
        while size > _KEPT_BYTES and len(kept) > new:
            size -= len(kept.pop(0))
        self.kept, self._last = kept, self._read_to or 0
        state = reading._replace(lines=[])
        changed, self.reading = new or state != self.reading, state
        woken = [
            follower for follower in self.followers if changed or follower.silent or follower.authorization.refusal
        ]
        for first in range(0, len(woken), _WOKEN_AT_ONCE):
            began_at = time.monotonic()
            for follower in woken[first : first + _WOKEN_AT_ONCE]:
                follower.woken.set()
            if len(woken) > _WOKEN_AT_ONCE:
                await asyncio.sleep(0)  # they send
                await asyncio.sleep(time.monotonic() - began_at)  # as much time for other requests

    def create_folder(self) -> Path:
        """Create and return the folder to watch, so that the first line of a waiting job is not missed."""
        folder = self._app_state.logs.directory(self._job_id)
        with suppress(OSError):  # on a full disk followers poll
            folder.mkdir(parents=True, exist_ok=True)
        return folder

    def poll(self) -> Reading:
        """Read what is new; called in a thread."""
        followers = list(self.followers)
        for authorization in {follower.authorization for follower in followers}:
            authorization.check()
        notified_at = self._app_state.logs.notified_at(self._job_id)
        if notified_at != self._notified_at or time.monotonic() >= self._next_row_poll_at:
            self._notified_at = notified_at
            self._poll_row()
        bounds = [follower.max_behind for follower in followers if follower.max_behind is not None]
        max_behind = max(bounds, default=0) if len(bounds) == len(followers) else None
        final = bool(self._row.end)
        tail = partial(self._reader.tail, final=final)
        if self._read_to is None:
            self._read_to = tail(0)
        self._skipped = max_behind is not None and tail(max_behind) > self._read_to
        if self._skipped:
            self._read_to = tail(min(LINES_AFTER_GAP, max_behind or 0))
        section = self._reader.section(self._read_to, _PAGE_LINES, final=final, max_page_bytes=_PAGE_BYTES)
        self._read_to += len(section.lines)
        if not section.partial or section.total != self._open_line[0]:
            self._open_line = section.total, time.monotonic()
        shown = section.partial if time.monotonic() - self._open_line[1] >= OPEN_SECONDS else ""
        return self._row._replace(lines=line_events(section.lines), total=section.total, partial=shown)

    def _read_page(self, after: int) -> list[bytes]:
        final = bool(self.reading.end)
        return line_events(self._reader.lines(after, _PAGE_LINES, final=final, max_page_bytes=_PAGE_BYTES))

    def _poll_row(self) -> None:
        self._next_row_poll_at = time.monotonic() + ROW_POLL_SECONDS
        try:
            with self._app_state.database.read() as session:
                job = queries.get(session, self._job_id)
                if job.state is not JobState.QUEUED:
                    self._waits = None
                elif self._waits is None or time.monotonic() >= self._next_queue_poll_at:
                    self._waits = wait_statuses(session, [job])[job.id]
                    self._next_queue_poll_at = time.monotonic() + _QUEUE_POLL_SECONDS
                waits = self._waits
                removed = find_removed(session, job, OutputKind.LOGS)
                stopped_by = queries.stopped_by(session, [job]).get(job.id)
        except JobNotFound as error:
            remove_late_outputs(self._app_state, self._job_id)  # the folder may have been made after the log's removal
            self._row = self._row._replace(error=format_error(error, 404))
            return
        except StoreUnavailable:  # the log can still be followed; the row is read again later
            return
        reason, message = job_reason(job, waits, datetime.now(UTC), stopped_by)
        phase = {
            "state": public_state(job.state, job.exit_code),
            "phase": job.phase,
            "reason": reason,
            "message": message or job.phase_detail,
            "queuePosition": waits.position if waits else None,
        }
        if phase != self._phase:
            self._phase = phase
            # The estimate moves with the clock: it is sent along with other changes, and is not a change itself.
            starts_at = iso_time(waits.starts_at) if waits and waits.starts_at else None
            self._row = self._row._replace(phase=format_event("phase", phase | {"estimatedStartAt": starts_at}))
        if job.ended:
            end = {"state": phase["state"], "exitCode": job.exit_code, "reason": reason, "message": phase["message"]}
            gone = format_event("removed", removed.model_dump()) if removed else b""
            self._row = self._row._replace(end=gone + format_event("end", end))


class PollRateLimiter:
    """Rate limiter of reads of a log: at most 100 a second, even if a job prints letter by letter.

    A short burst of changes, as at a job's start, is not delayed.
    """

    def __init__(self) -> None:
        self._due = 0.0

    def next_poll_at(self, polled_at: float) -> float:
        """Return the earliest time of the next read after one at `polled_at`, by the monotonic clock."""
        self._due = min(max(self._due, polled_at) + _MIN_POLL_SECONDS, polled_at + _BURST_SECONDS + _MIN_POLL_SECONDS)
        return self._due - _BURST_SECONDS


async def _wait_for_change(wakes: WakeEvents, until: float, earliest: float) -> None:
    """Wait for a change, at the latest until `until`; but not less than until `earliest`, unless the service stops."""
    with anyio.move_on_after(max(0.0, until - time.monotonic())):
        await wakes.changed.wait()
    with anyio.move_on_after(max(0.0, earliest - time.monotonic())):
        await wakes.stopped.wait()


def format_event(name: str, data: dict[str, Any], number: int | None = None) -> bytes:
    """Format an event; its number is that of the last line that the client has then."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    numbered = f"id: {number}\n" if number is not None else ""
    return f"event: {name}\n{numbered}data: {text}\n\n".encode(errors="replace")


def format_error(error: GradientError, status: int) -> bytes:
    fields = {"name": type(error).__name__, "status": status, "message": error.message}
    return format_event("error", {"error": fields})


def line_events(lines: Iterable[LogLine]) -> list[bytes]:
    return [format_event("line", log_row(line), line.line) for line in lines]


def log_row(line: LogLine) -> dict[str, Any]:
    return {"line": line.line, "timestamp": iso_time_ms(line.time_ms), "message": line.message}
