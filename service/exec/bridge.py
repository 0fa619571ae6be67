"""Passes an exec session between a client's WebSocket and the worker's channel.

A client sends text messages with JSON (`resize`, `signal`, `eof`) and binary ones with input. It gets binary messages
(a stream's number and its data) and, first and last, text messages with JSON. Neither side is read faster than the
other one takes it, so output needs no memory here.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any, TypeAlias

from starlette.websockets import WebSocketDisconnect

from core.db.models.jobs import Job
from core.errors import GradientError, JobNotEnterable, StoreUnavailable
from core.ids import new_id
from core.jobs.exec import audit, channel
from core.jobs.exec.audit import ExecSession
from core.settings import Settings
from service.app_state import AppState
from service.auth.authentication import Principal, authorization
from service.auth.ownership import require_owner

_CONNECT_SECONDS = 10.0
_START_SECONDS = 60.0
PING_SECONDS = 20.0  # seconds between checks of the client; proxies close what is silent for a minute
CHECK_SECONDS = 4.0  # seconds between checks of its key and rights
IDLE_SECONDS = 3600.0  # without input and output after which a session ends
MAX_SECONDS = 43_200.0  # after which a session ends
_NORMAL, _POLICY = 1000, 1008
Check: TypeAlias = Callable[[], Awaitable[object]]


@asynccontextmanager
async def connect_worker(settings: Settings, worker: str) -> AsyncIterator["WorkerChannel"]:
    try:
        with channel.socket_address(settings.root, worker) as address:
            async with asyncio.timeout(_CONNECT_SECONDS):
                reader, writer = await asyncio.open_unix_connection(address)
    except (OSError, TimeoutError) as error:
        raise JobNotEnterable(
            f"The job's worker {worker!r} cannot be reached: it is restarting, is cut off from this service, or "
            "does not allow exec sessions. Try again in a few seconds."
        ) from error
    try:
        yield WorkerChannel(reader, writer)
    finally:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()


class WorkerChannel:
    """The service's end of a session's channel."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def start(self, request: dict[str, Any]) -> None:
        await self.send(channel.encode_control(request))
        try:
            async with asyncio.timeout(_START_SECONDS):
                frame = await self.receive()
        except TimeoutError:
            frame = None
        answer = {} if frame is None else channel.decode_control(frame[1])
        if not answer.get("started"):
            raise JobNotEnterable(str(answer.get("refused", "The job's worker was lost. Try again in a few seconds.")))

    async def send(self, frame: bytes) -> None:
        self._writer.write(frame)
        await self._writer.drain()

    async def receive(self) -> tuple[int, bytes] | None:
        try:
            kind, length = channel.decode_head(await self._reader.readexactly(channel.HEAD.size))
            return kind, await self._reader.readexactly(length)
        except (asyncio.IncompleteReadError, OSError, channel.ChannelBroken):
            return None


class Bridge:
    """Passes a session on. `check`: raises `GradientError` once the client may no longer be there."""

    def __init__(
        self,
        websocket: Any,  # noqa: ANN401 - a WebSocket, or what has four of its methods
        worker: WorkerChannel,
        check: Check,
        *,
        ends_when_idle: bool = True,
    ) -> None:
        self._websocket = websocket
        self._worker = worker
        self._ends_when_idle = ends_when_idle
        self._check = check
        self._active_at = time.monotonic()
        self._result: str | None = None  # end of the session, if not by its client

    async def run(self) -> str:
        """Pass everything on until one side ends; return the result, for the job's events."""
        tasks = [asyncio.create_task(coroutine) for coroutine in (self._receive(), self._send(), self._watch())]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            # Both may be done: a connection that this side closes ends for the other task, too.
            return self._result or done.pop().result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _receive(self) -> str:
        """Pass on what the client sends."""
        try:
            while True:
                message = await self._websocket.receive()
                if message["type"] == "websocket.disconnect":
                    return "the client disconnected"
                self._active_at = time.monotonic()
                text, data = message.get("text"), message.get("bytes") or b""
                if text is not None:
                    await self._worker.send(channel.encode(channel.CONTROL, text.encode()))
                for start in range(0, len(data), channel.CHUNK_BYTES):
                    await self._worker.send(channel.encode(channel.INPUT, data[start : start + channel.CHUNK_BYTES]))
        except OSError:  # the worker reads no more: its last frame says why
            await asyncio.Event().wait()
            raise

    async def _send(self) -> str:
        try:
            while (frame := await self._worker.receive()) is not None:
                kind, payload = frame
                if kind == channel.OUTPUT:
                    await self._websocket.send_bytes(payload)
                    self._active_at = time.monotonic()
                    continue
                last = channel.decode_control(payload)
                self._result = f"exit code {last['exit']}" if "exit" in last else str(last.get("ended"))
                await self._close(last)
                return self._result
            self._result = "The connection to the job's worker was lost."
            await self._close({"ended": self._result})
        except (WebSocketDisconnect, RuntimeError, OSError):
            return "the client disconnected"
        return self._result

    async def _watch(self) -> str:
        """End the session at its limits, and when its client may no longer be there."""
        ends_at = time.monotonic() + MAX_SECONDS
        while True:
            now = time.monotonic()
            idle_at = self._active_at + IDLE_SECONDS if self._ends_when_idle else ends_at
            if now >= min(ends_at, idle_at):
                idle = idle_at < ends_at
                text = f"Nothing was sent for {IDLE_SECONDS:g}" if idle else f"The session lasted for {MAX_SECONDS:g}"
                return await self._end(f"{text} seconds, the limit.")
            await asyncio.sleep(min(CHECK_SECONDS, ends_at - now, idle_at - now))
            try:
                with suppress(StoreUnavailable):  # the next check may succeed
                    await self._check()
            except GradientError as error:
                return await self._end(error.message)

    async def _end(self, text: str) -> str:
        self._result = text
        with suppress(WebSocketDisconnect, RuntimeError, OSError, TimeoutError):
            async with asyncio.timeout(_CONNECT_SECONDS):  # a client that reads nothing is not waited for
                await self._close({"ended": text}, _POLICY)
        return text

    async def _close(self, last: dict[str, Any], code: int = _NORMAL) -> None:
        await self._websocket.send_text(json.dumps(last))
        await self._websocket.close(code)


class Session:
    """A session of a caller in a job. `check`: see `Bridge`; by default, of the caller's key and rights."""

    def __init__(
        self, app_state: AppState, caller: Principal, job: Job, action: str, check: Check | None = None
    ) -> None:
        self._app_state = app_state
        self._caller = caller
        self._job = job
        self._record = ExecSession(new_id("e"), caller.id, caller.name, action)
        self._check = check or partial(app_state.lanes.urgent.run, self._check_rights)
        self._result = "the service failed"

    async def run(self, websocket: Any, request: dict[str, Any], *, ends_when_idle: bool = True) -> None:  # noqa: ANN401 - as for `Bridge`
        async with self.recorded():
            await self.connect(websocket, request, ends_when_idle=ends_when_idle)

    @asynccontextmanager
    async def recorded(self) -> AsyncIterator[None]:
        """Record the session in the job's events: at the start of the block, and with its result at the end."""
        await self._write(audit.record_opened)
        began = time.monotonic()
        try:
            yield
        except GradientError as error:
            self._result = f"refused: {error.message}"
            raise
        finally:
            seconds = time.monotonic() - began
            with suppress(StoreUnavailable):  # its beginning is recorded
                await self._write(partial(audit.record_closed, result=self._result, seconds=seconds))

    async def connect(self, websocket: Any, request: dict[str, Any], *, ends_when_idle: bool = True) -> None:  # noqa: ANN401 - as for `Bridge`
        """Connect client and worker until one of them ends."""
        async with self.started(request) as worker:
            await websocket.send_text(json.dumps({"started": self._record.id}))
            self._result = await Bridge(websocket, worker, self._check, ends_when_idle=ends_when_idle).run()

    @asynccontextmanager
    async def started(self, request: dict[str, Any]) -> AsyncIterator[WorkerChannel]:
        """Start what is requested at the worker. Raises `GradientError`: the worker refuses it."""
        job, record = self._job, self._record
        async with connect_worker(self._app_state.settings, job.worker or "") as worker:
            await worker.start(
                {"session": record.id, "key": record.key_id, "job": job.id, "lease": job.lease, **request}
            )
            yield worker

    def _check_rights(self) -> None:
        authorization(self._app_state, self._caller, [self._job.id])()
        with self._app_state.database.read() as session:
            require_owner(session, self._app_state, self._caller, self._job.id)

    async def _write(self, record: Any) -> None:  # noqa: ANN401 - a function of `audit`
        def write() -> None:
            with self._app_state.database.write() as session:
                record(session, self._job, self._record)

        await self._app_state.lanes.changing.run(write)
