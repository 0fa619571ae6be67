"""A job's log as server-sent events, followed until the job has ended.

    line     a line of the log; its id is the line's number, so that a client can resume after it
    partial  the current text of an unfinished line, such as a progress bar
    gap      lines that are not sent, because the client accepts skips and is far behind: the first and the last
    phase    the job's state, phase and reason, whenever they change
    removed  the log was deleted: when, and by which policy
    end      the job ended and every line was sent
    error    the stream ends early: the job was deleted or hidden, or the key or the session is no longer valid

The followers of a log share a feed, which polls the job's row and the log once a second, and at once after a change on
this host. A follower only knows how far its client is; while that is too far behind the feed, as at its start, it reads
pages. The reason why a job waits is polled less often, because its cost grows with the queue, and a key every 3 s.
"""

import asyncio
import time
from collections.abc import Callable

import anyio
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from service.app_state import AppState
from service.auth.authentication import Principal, authorization
from service.auth.per_key_limits import limit_reached
from service.log_stream.feed import AFTER_GAP_SECONDS, LINES_AFTER_GAP, Authorization, JobFeed, format_event

KEEP_ALIVE_SECONDS = 15.0
_RECONNECT_MS = 1000
_RETRY_AFTER_SECONDS = 5.0


class LogStream(Response):
    """The streaming response that follows a log.

    `max_behind`: most lines that the client may be behind before lines are skipped; None: every line is sent.
    """

    def __init__(
        self, app_state: AppState, job_id: str, after: int, caller: Principal, *, max_behind: int | None = None
    ) -> None:
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        super().__init__(headers=headers, media_type="text/event-stream")
        del self.headers["content-length"]
        self._app_state = app_state
        self._job_id = job_id
        self._after = after
        self._caller = caller
        self._max_behind = max_behind

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send events until the job or the authorization ends, the client disconnects or the service stops."""
        del scope
        streams = self._app_state.streams
        # Checked and counted in one step of the event loop, so that concurrent requests cannot exceed a limit.
        if streams.is_key_at_capacity(self._caller.id):
            settings, of = self._app_state.settings, "logs followed at once by one key"
            number = settings.api.processes
            raise limit_reached(settings.limits.streams, of, "streams", _RETRY_AFTER_SECONDS, number)
        if streams.at_capacity:
            raise HTTPException(
                503,
                "Too many logs are being followed. Try again, or read the log page by page.",
                {"Retry-After": f"{_RETRY_AFTER_SECONDS:.0f}"},
            )
        with streams.count_stream(self._caller.id):
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            await _send_part(send, f"retry: {_RECONNECT_MS}\n\n".encode())
            async with anyio.create_task_group() as group:
                group.start_soon(_cancel_at_disconnect, receive, group.cancel_scope)
                follower = Follower(self._join_feed(), self._authorization(), self._after, self._max_behind)
                follower.cancel = group.cancel_scope.cancel
                await follower.send_events(send)
                await send({"type": "http.response.body", "body": b""})
                group.cancel_scope.cancel()

    def _join_feed(self) -> JobFeed:
        feeds = self._app_state.streams.feeds
        feed = feeds.get(self._job_id)
        if not isinstance(feed, JobFeed) or feed.closed:
            feed = feeds[self._job_id] = JobFeed(self._app_state, self._job_id)
        return feed

    def _authorization(self) -> Authorization:
        shared = self._app_state.streams.authorizations
        followed = self._caller, self._job_id
        shared_authorization = shared.get(followed)
        if not isinstance(shared_authorization, Authorization) or shared_authorization.refusal:
            authorize = authorization(self._app_state, self._caller, [self._job_id])
            shared_authorization = shared[followed] = Authorization(authorize)
        return shared_authorization


class Follower:
    """Tracks what one client has received of a feed, and sends the rest.

    `max_behind`: most lines that it may be behind before lines are skipped; None: every line is sent.
    """

    def __init__(self, feed: JobFeed, authorization: Authorization, after: int, max_behind: int | None) -> None:
        self._feed = feed
        self._after = after
        self._phase = b""
        self._partial = ""
        self._skipped = False
        self._done = False
        self._sent_at = time.monotonic()
        self.authorization = authorization
        self.max_behind = max_behind
        self.woken = asyncio.Event()  # set when there may be something to send
        self.cancel: Callable[[], None] = lambda: None

    @property
    def silent(self) -> bool:
        """True if nothing was sent for so long that a proxy may close the connection."""
        return self._sent_at + KEEP_ALIVE_SECONDS <= time.monotonic()

    async def send_events(self, send: Send) -> None:
        """Send events until the last one, or until the feed is closed."""
        self._feed.add(self)
        try:
            while not (self._done or self._feed.closed):
                self.woken.clear()
                events = await self.next_events()
                if events or self.silent:
                    await _send_part(send, events or self._keep_alive())
                    self._sent_at = time.monotonic()
                if self._skipped:  # the client cannot keep up
                    await anyio.sleep(AFTER_GAP_SECONDS)
                elif not events:
                    await self.woken.wait()
        finally:
            self._feed.remove(self)

    async def next_events(self) -> bytes:
        reading = self._feed.reading
        if last := self.authorization.refusal or reading.error:
            self._done = True
            return last
        events = [reading.phase if reading.phase != self._phase else b"", self._skip_ahead(reading.total)]
        self._phase = reading.phase
        if self._after < reading.total:
            lines = await self._feed.lines_after(self._after)
            if lines:
                self._after, self._partial = self._after + len(lines), ""
            events += lines
        elif reading.end:
            self._done = True
            events.append(reading.end)
        elif reading.partial != self._partial:
            self._partial = reading.partial
            events.append(format_event("partial", {"message": reading.partial}))
        return b"".join(events)

    def _keep_alive(self) -> bytes:
        # The unfinished line once more: a client shows it only if it stays one.
        return format_event("partial", {"message": self._partial}) if self._partial else b": still here\n\n"

    def _skip_ahead(self, total: int) -> bytes:
        first = self._after + 1
        self._skipped = self.max_behind is not None and total - self.max_behind >= first
        if not self._skipped:
            return b""
        self._after = max(0, total - min(LINES_AFTER_GAP, self.max_behind or 0))
        return format_event("gap", {"from": first, "to": self._after}, self._after)


async def _cancel_at_disconnect(receive: Receive, scope: anyio.CancelScope) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    scope.cancel()


async def _send_part(send: Send, data: bytes) -> None:
    await send({"type": "http.response.body", "body": data, "more_body": True})
