"""Shared helpers for tests of the service: a live server, a worker's transitions, and requests to send."""

import asyncio
import io
import json
import threading
import time
import tracemalloc
import zipfile
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import httpx
import uvicorn.server
from anyio.from_thread import start_blocking_portal
from fastapi import FastAPI
from sqlalchemy import event
from support.deployment import EMPTY_SSL_CONTEXT, TIMEOUT_SECONDS

from core.db import prepared
from core.db.database import Database
from core.db.models.jobs import Job
from core.jobs import lifecycle, queries
from core.jobs.scheduling import claims, workers
from core.jobs.scheduling.claims import WorkerOffer
from core.jobs.scheduling.port_allocations import PortRange
from core.security import visibility
from core.settings import Settings
from service.app_state import AppState
from service.http.connections import ConnectionTimes
from service.http.server import Server

OFFER = WorkerOffer("w", "h", ("process",), cpus=8.0, memory_mb=65_536, ports=PortRange(20_000, 29_999, "h.example"))


def wait_until(condition: Callable[[], object], seconds: float = TIMEOUT_SECONDS) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "it did not come true in time"
        time.sleep(0.005)


class FakeWorker:
    """Moves jobs as a worker would."""

    def __init__(self, stores: AppState, offer: WorkerOffer = OFFER) -> None:
        self._database, self._offer = stores.database, offer

    def register(self) -> None:
        with self._database.write() as session:
            workers.register(session, self._offer, boot_id="b", slots=1)

    def claim(self) -> Job:
        with self._database.write() as session:
            job = claims.claim(session, self._offer)
        assert job is not None
        return job

    def start(self) -> Job:
        job = self.claim()
        with self._database.write() as session:
            return lifecycle.mark_running(session, job, {"pid": 1})

    def end(self, job: Job, reason: str = "completed", **fields) -> Job:
        with self._database.write() as session:
            ended = lifecycle.mark_finishing(session, job, reason, **fields)
            return lifecycle.finish(session, ended, artifacts_state="complete")

    def get(self, job_id: str) -> Job:
        with self._database.read() as session:
            return queries.get(session, job_id)


def _sleep_briefly(seconds: float) -> Coroutine[Any, Any, None]:
    return asyncio.sleep(min(seconds, 0.01))


# uvicorn looks every 100 ms whether to stop, and then waits as long again.
vars(uvicorn.server)["asyncio"] = SimpleNamespace(**vars(asyncio) | {"sleep": _sleep_briefly})


class LiveServer:
    """The application behind a real uvicorn, in a thread."""

    def __init__(self, app: FastAPI, secret: str, times: ConnectionTimes = ConnectionTimes()) -> None:
        self.server = Server(app, port=0, times=times)
        self.api_key = secret
        self.thread = threading.Thread(target=self.server.run)
        self.thread.start()
        wait_until(lambda: self.server.started)
        self.port = self.server.servers[0].sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"

    def client(self, headers: dict[str, str] | None = None) -> httpx.Client:
        headers = {"x-api-key": self.api_key} if headers is None else headers
        return httpx.Client(base_url=self.url, headers=headers, timeout=60, verify=EMPTY_SSL_CONTEXT)

    def stop(self) -> None:
        self.server.should_exit = True
        self.thread.join(20)
        assert not self.thread.is_alive()


class InProcessServer(httpx.BaseTransport):
    """The application without a socket; an answer comes whole, so that nothing can be read of it before its end."""

    url = "http://127.0.0.1"

    def __init__(self, app: FastAPI, secret: str) -> None:
        self.api_key = secret
        self._application = httpx.ASGITransport(app, raise_app_exceptions=False, client=("127.0.0.1", 50_000))
        self._running = ExitStack()
        self._loop = self._running.enter_context(start_blocking_portal())
        self._running.enter_context(self._loop.wrap_async_context_manager(app.router.lifespan_context(app)))

    def client(self, headers: dict[str, str] | None = None) -> httpx.Client:
        headers = {"x-api-key": self.api_key} if headers is None else headers
        return httpx.Client(base_url=self.url, headers=headers, transport=self)

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        request.read()
        return self._loop.call(self._answer, request)

    async def _answer(self, request: httpx.Request) -> httpx.Response:
        answer = await self._application.handle_async_request(request)
        body = b"".join([part async for part in answer.stream])
        return httpx.Response(answer.status_code, headers=answer.headers, stream=httpx.ByteStream(body))

    def stop(self) -> None:
        self._running.close()


def make_job_body(**fields) -> dict:
    return {"machineType": "CPU", "command": "python main.py", **fields}


def make_zip(files: dict[str, bytes] | None = None) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in (files or {"main.py": b"print(1)\n"}).items():
            entry = zipfile.ZipInfo(name)  # of 1980: the same files are the same bytes
            archive.writestr(entry, content, zipfile.ZIP_DEFLATED)
    return out.getvalue()


def make_form(spec: dict, archive: bytes) -> dict[str, tuple]:
    return {
        "spec": (None, json.dumps(spec), "application/json"),
        "workspace": ("workspace.zip", archive, "application/zip"),
    }


@contextmanager
def record_statements(database: Database, when: Callable[[], object] = lambda: True) -> Iterator[list[tuple[str, Any]]]:
    """Record each statement sent to the database while the block lasts, with its parameters.

    `when`: says in the thread that sends a statement whether it counts.
    """
    statements: list[tuple[str, Any]] = []

    def note(_connection, _cursor, statement, parameters, _context, _many) -> None:
        if when():
            statements.append((statement, parameters))

    driver_parameters = prepared._Compiled.driver_parameters

    def note_prepared(compiled, values):
        parameters = driver_parameters(compiled, values)
        if when():
            statements.append((compiled.text, parameters))
        return parameters

    event.listen(database.engine, "before_cursor_execute", note)
    try:
        with patch.object(prepared._Compiled, "driver_parameters", note_prepared):
            yield statements
    finally:
        event.remove(database.engine, "before_cursor_execute", note)


def record_requests(database: Database) -> AbstractContextManager[list[tuple[str, Any]]]:
    """Record the statements of requests, without other work of the service, such as repairs and notifications."""
    return record_statements(database, visibility._viewer.get)


def measure_peak_memory(action: Callable[[], None]) -> int:
    """Bytes that Python allocated at most while an action ran, beyond what it had."""
    tracemalloc.start()
    try:
        action()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def count_jobs(database: Database) -> int:
    with database.read() as session:
        return len(queries.page(session, queries.JobFilter(), limit=10_000).jobs)


def list_stored_workspaces(settings: Settings) -> list[Path]:
    return [path for path in (settings.root / "workspaces").rglob("*") if path.is_file()]
