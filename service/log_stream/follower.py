"""A job's log as server-sent events, followed until the job has ended.

    line     a line of the log; its id is the line's number, so that a client can resume after it
    partial  the current text of an unfinished line, such as a progress bar
    gap      lines that are not sent, because the client accepts skips and is far behind: the first and the last
    phase    the job's state, phase and reason, whenever they change
    removed  the log was deleted: when, and by which policy
    end      the job ended and every line was sent
    error    the stream ends early: the job was deleted, or the key or the session is no longer valid

While nothing happens, a follower only polls the job's row and its log once a second, and holds neither a thread nor a
session in between. A worker on the same host wakes the followers when the row changes. The reason why a job waits is
polled less often: its cost grows with the queue. The key is checked every 15 s, beside the job's row; followers of one
key share its cached row.
"""

import json
import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import anyio
import anyio.to_thread
from sqlalchemy.orm import Session
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from core.db.models.jobs import Job
from core.errors import GradientError, JobNotFound, StoreUnavailable, Unauthorized
from core.formatting import iso_time, iso_time_ms
from core.jobs import queries
from core.jobs.scheduling.wait_status import WaitStatus, wait_statuses
from core.jobs.states import JobState
from core.storage.joblogs.store import LogLine
from core.storage.retention import OutputKind
from service.auth.per_key_limits import limit_reached
from service.deps import AppState
from service.log_stream.registry import WakeEvents
from service.presenters.jobs import job_reason, public_state
from service.presenters.removed import find_removed
from service.schemas.jobs import RemovedView

logger = logging.getLogger(__name__)

_PAGE_LINES = 2000
_PAGE_BYTES = 256 * 1024
_LINES_AFTER_GAP = 100
_AFTER_GAP_SECONDS = 0.2
_JOB_POLL_SECONDS = 1.0
_QUEUE_POLL_SECONDS = 5.0
_AUTHORIZE_SECONDS = 15.0
_MIN_POLL_SECONDS = 0.01
_BURST_SECONDS = 0.05
_KEEP_ALIVE_SECONDS = 15.0
_STOP_GRACE_SECONDS = 1.0
_RECONNECT_MS = 1000
_RETRY_AFTER_SECONDS = 5.0


class LogStream(Response):
    """The streaming response that follows a log.

    Args:
        app_state: The application's state.
        job_id: Id of the job.
        after: The last line that the client has.
        key: Id of the client's API key.
        authorize: Raises `Unauthorized` once the key or the session is no longer valid.
        max_behind: Most lines that the client may be behind before lines are skipped; None: every line is sent.
    """

    def __init__(
        self,
        app_state: AppState,
        job_id: str,
        after: int,
        key: str,
        *,
        authorize: Callable[[], object],
        max_behind: int | None = None,
    ) -> None:
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        super().__init__(headers=headers, media_type="text/event-stream")
        del self.headers["content-length"]
        self._app_state = app_state
        self._key = key
        self._follower = LogFollower(app_state, job_id, after, authorize=authorize, max_behind=max_behind)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send events until the job or the authorization ends, the client disconnects or the service stops.

        Raises:
            LimitReached: The key follows too many logs.
            HTTPException: 503: too many logs are followed in all.
        """
        del scope
        streams = self._app_state.streams
        # Checked and counted in one step of the event loop, so that concurrent requests cannot exceed a limit.
        if streams.is_key_at_capacity(self._key):
            limit = self._app_state.settings.limits.streams
            raise limit_reached(limit, "logs followed at once by one key", "streams", _RETRY_AFTER_SECONDS)
        if streams.at_capacity:
            raise HTTPException(
                503,
                "Too many logs are followed at once. Try again, or read pages.",
                {"Retry-After": f"{_RETRY_AFTER_SECONDS:.0f}"},
            )
        with streams.count_stream(self._key):
            await self._stream(receive, send)

    async def _stream(self, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        await send(_body_message(f"retry: {_RECONNECT_MS}\n\n".encode()))
        folder = await self._run_in_reader_thread(self._follower.create_folder)
        with self._app_state.streams.watch_folder(folder) as wakes:
            async with anyio.create_task_group() as group:

                async def leave() -> None:
                    while (await receive())["type"] != "http.disconnect":
                        pass
                    group.cancel_scope.cancel()

                async def stop() -> None:
                    await wakes.stopped.wait()
                    # A stream that blocks on a client that does not read ends only by cancellation.
                    await anyio.sleep(_STOP_GRACE_SECONDS)
                    group.cancel_scope.cancel()

                group.start_soon(leave)
                group.start_soon(stop)
                await self._follow(send, wakes)
                await send({"type": "http.response.body", "body": b""})
                group.cancel_scope.cancel()

    async def _follow(self, send: Send, wakes: WakeEvents) -> None:
        follower = self._follower
        limiter = PollRateLimiter()
        sent = time.monotonic()
        while not wakes.stopped.is_set():
            wakes.changed.clear()
            polled_at = time.monotonic()
            earliest = limiter.next_poll_at(polled_at)
            events = await self._run_in_reader_thread(follower.poll)
            if events:
                await send(_body_message(events))
                sent = time.monotonic()
            elif sent + _KEEP_ALIVE_SECONDS <= polled_at:
                await send(_body_message(b": still here\n\n"))
                sent = polled_at
            if follower.done:
                return
            if follower.skipped:
                earliest = max(earliest, polled_at + _AFTER_GAP_SECONDS)
            if not follower.more:
                await _wait_for_change(wakes, follower.next_job_poll_at, earliest)

    async def _run_in_reader_thread(self, call: Any) -> Any:  # noqa: ANN401 - what it returns
        return await anyio.to_thread.run_sync(call, limiter=self._app_state.streams.readers)


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


def _body_message(data: bytes) -> dict[str, Any]:
    return {"type": "http.response.body", "body": data, "more_body": True}


class LogFollower:
    """Tracks what one client has received of a job's log and state, and produces the new events.

    Args:
        app_state: The application's state.
        job_id: Id of the job.
        after: The last line that the client has.
        authorize: Raises `Unauthorized` once the client may not follow any more; None: it always may.
        max_behind: Most lines that the client may be behind before lines are skipped; None: every line is sent.
    """

    def __init__(
        self,
        app_state: AppState,
        job_id: str,
        after: int,
        *,
        authorize: Callable[[], object] | None = None,
        max_behind: int | None = None,
    ) -> None:
        self._app_state = app_state
        self._authorize = authorize
        self._next_authorization_at = time.monotonic() + _AUTHORIZE_SECONDS
        self._job_id = job_id
        self._reader = app_state.logs.reader(job_id)
        self._after = after
        self._max_behind = max_behind
        self._partial = ""
        self._phase: dict[str, Any] | None = None
        self._job: Job | None = None
        self._removed: RemovedView | None = None
        self._waits: WaitStatus | None = None
        self._next_queue_poll_at = 0.0
        self._notified_at = 0
        self.next_job_poll_at = 0.0
        """Time of the next poll of the row, by the monotonic clock."""
        self.more = False
        """True if more lines may be ready to be read."""
        self.skipped = False
        """True if the last poll skipped lines: the next one can wait, because the client cannot keep up."""
        self.done = False
        """True once no more events will follow."""

    def create_folder(self) -> Any:  # noqa: ANN401 - a path, for a thread to return
        """Create and return the folder to watch, so that the first line of a waiting job is not missed."""
        folder = self._app_state.logs.directory(self._job_id)
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def poll(self) -> bytes:
        """Return the events for everything new."""
        if refusal := self._check_authorization():
            self.done = True
            return refusal
        out: list[bytes] = []
        nudged = self._app_state.logs.notified_at(self._job_id)
        if nudged != self._notified_at or time.monotonic() >= self.next_job_poll_at:
            self._notified_at = nudged
            out.extend(self._poll_job())
        if not self.done:
            out.extend(self._poll_log())
        return b"".join(out)

    def _check_authorization(self) -> bytes:
        """Return the last event for a client that may not follow any more; empty if it may, or if no check is due."""
        if self._authorize is None or time.monotonic() < self._next_authorization_at:
            return b""
        self._next_authorization_at = time.monotonic() + _AUTHORIZE_SECONDS
        try:
            self._authorize()
        except Unauthorized as error:
            return _format_event("error", _error_fields(error, 401))
        except StoreUnavailable:  # the next check may succeed
            pass
        return b""

    def _poll_job(self) -> list[bytes]:
        try:
            with self._app_state.database.read() as session:
                job = queries.get(session, self._job_id)
                waits = self._poll_queue(session, job)
                self._removed = find_removed(session, job, OutputKind.LOGS)
        except JobNotFound as error:
            self.done = True
            return [_format_event("error", _error_fields(error, 404))]
        except StoreUnavailable:
            # The log itself can still be followed; the row is read again later.
            self.next_job_poll_at = time.monotonic() + _JOB_POLL_SECONDS
            return []
        self.next_job_poll_at = time.monotonic() + _JOB_POLL_SECONDS
        self._job = job
        reason, message = job_reason(job, waits, datetime.now(UTC))
        phase = {
            "state": public_state(job.state, job.exit_code),
            "phase": job.phase,
            "reason": reason,
            "message": message or job.phase_detail,
            "queuePosition": waits.position if waits else None,
        }
        if phase == self._phase:
            return []
        self._phase = phase
        # The estimate moves with the clock: it is sent along with other changes, and is not a change itself.
        starts_at = iso_time(waits.starts_at) if waits and waits.starts_at else None
        return [_format_event("phase", phase | {"estimatedStartAt": starts_at})]

    def _poll_queue(self, session: Session, job: Job) -> WaitStatus | None:
        if job.state is not JobState.QUEUED:
            self._waits = None
        elif self._waits is None or time.monotonic() >= self._next_queue_poll_at:
            self._waits = wait_statuses(session, [job])[job.id]
            self._next_queue_poll_at = time.monotonic() + _QUEUE_POLL_SECONDS
        return self._waits

    def _poll_log(self) -> list[bytes]:
        final = self._job is not None and self._job.ended
        # Read before the lines: if no lines follow, it belongs after the last line sent.
        partial = "" if final else self._reader.partial()
        gap = self._skip_ahead(final=final)
        self.skipped = bool(gap)
        lines = self._reader.lines(self._after, _PAGE_LINES, final=final, max_page_bytes=_PAGE_BYTES)
        self.more = bool(lines) and not self.skipped
        if lines:
            self._after, self._partial = lines[-1].line, ""
            return [*gap, *(_format_event("line", log_row(line), line.line) for line in lines)]
        if final and self._job is not None:
            self.done = True
            gone = [_format_event("removed", self._removed.model_dump())] if self._removed else []
            return [*gone, _format_event("end", _end_fields(self._job, self._phase or {}))]
        if partial == self._partial:
            return []
        self._partial = partial
        return [_format_event("partial", {"message": partial})]

    def _skip_ahead(self, *, final: bool) -> list[bytes]:
        if self._max_behind is None:
            return []
        first = self._after + 1
        if self._reader.tail(self._max_behind, final=final) < first:
            return []
        self._after = self._reader.tail(min(_LINES_AFTER_GAP, self._max_behind), final=final)
        return [_format_event("gap", {"from": first, "to": self._after}, self._after)]


def log_row(line: LogLine) -> dict[str, Any]:
    """Convert a line of a log to its public form."""
    return {"line": line.line, "timestamp": iso_time_ms(line.time_ms), "message": line.message}


def _end_fields(job: Job, phase: dict[str, Any]) -> dict[str, Any]:
    return {
        "state": public_state(job.state, job.exit_code),
        "exitCode": job.exit_code,
        "reason": phase.get("reason"),
        "message": phase.get("message"),
    }


def _error_fields(error: GradientError, status: int) -> dict[str, Any]:
    return {"error": {"name": type(error).__name__, "status": status, "message": error.message}}


def _format_event(name: str, data: dict[str, Any], number: int | None = None) -> bytes:
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    numbered = f"id: {number}\n" if number is not None else ""
    return f"event: {name}\n{numbered}data: {text}\n\n".encode(errors="replace")
