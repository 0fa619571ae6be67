"""Exec sessions: commands, shells and port connections in running jobs, over WebSockets.

Authentication is by a key in a header alone: a page of another site can send neither.
"""

import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from math import inf
from typing import Any

from fastapi import APIRouter, WebSocket
from starlette.websockets import WebSocketDisconnect

from core.db.models.jobs import Job
from core.errors import ExecDisabled, GradientError, StoreUnavailable
from core.ids import new_id
from core.jobs.exec import audit
from core.jobs.exec.audit import ExecSession
from core.settings.exec import ExecSettings
from service.auth.authentication import Caller, Principal
from service.deps import AppState, AppStateDep
from service.exec.bridge import Bridge, connect_worker
from service.exec.request import parse_port, read_command

logger = logging.getLogger(__name__)

router = APIRouter(prefix="/jobs", tags=["exec"])

_REFUSED = 1008


@router.websocket("/{job_id}/exec")
async def run_in_job(websocket: WebSocket, app_state: AppStateDep, caller: Caller, job_id: str) -> None:
    """Run a command in a job."""
    async with app_state.limits.exec_sessions.slot(caller.id):
        job = await app_state.lanes.reading.run(_find_job, app_state, job_id)
        await websocket.accept()
        async with _refusals(websocket):
            wanted = await read_command(websocket)
            terminal = wanted.terminal
            action = audit.describe_command(wanted.command, tty=terminal is not None)
            await _Session(websocket, app_state, caller, job, action).run(
                {
                    "command": wanted.command,
                    "terminal": (terminal.rows, terminal.columns, terminal.term) if terminal else None,
                },
                app_state.settings.exec,
            )


@router.websocket("/{job_id}/forward")
async def forward_port(websocket: WebSocket, app_state: AppStateDep, caller: Caller, job_id: str) -> None:
    """Open a port session: connections to one port of a job may be made until it ends."""
    port = parse_port(websocket.query_params.get("port"))
    async with app_state.limits.exec_sessions.slot(caller.id):
        job = await app_state.lanes.reading.run(_find_job, app_state, job_id)
        await websocket.accept()
        async with _refusals(websocket):
            # Its connections are idle or not, not the session itself.
            limits = app_state.settings.exec.model_copy(update={"idle_seconds": inf})
            await _Session(websocket, app_state, caller, job, f"connections to port {port}").run({"port": port}, limits)


@router.websocket("/{job_id}/forward/{session_id}")
async def connect_to_port(
    websocket: WebSocket, app_state: AppStateDep, caller: Caller, job_id: str, session_id: str
) -> None:
    """Make a connection of a port session."""
    async with app_state.limits.exec_connections.slot(caller.id):
        job = await app_state.lanes.reading.run(_find_job, app_state, job_id)
        await websocket.accept()
        async with _refusals(websocket):
            session = _Session(websocket, app_state, caller, job, "connection")
            await session.connect({"parent": session_id}, app_state.settings.exec)


def _find_job(app_state: AppState, job_id: str) -> Job:
    if not app_state.settings.exec.enabled:
        raise ExecDisabled
    with app_state.database.read() as session:
        return audit.enterable_job(session, job_id)


@asynccontextmanager
async def _refusals(websocket: WebSocket) -> AsyncIterator[None]:
    """Send an error that comes after the WebSocket was accepted."""
    try:
        yield
    except GradientError as error:
        with suppress(WebSocketDisconnect, RuntimeError):
            await websocket.send_json({"refused": error.message, "name": type(error).__name__})
            await websocket.close(_REFUSED)
    except WebSocketDisconnect:
        return


class _Session:
    def __init__(self, websocket: WebSocket, app_state: AppState, caller: Principal, job: Job, action: str) -> None:
        self._websocket = websocket
        self._app_state = app_state
        self._job = job
        self._record = ExecSession(new_id("e"), caller.id, caller.name, action)

    async def run(self, request: dict[str, Any], limits: ExecSettings) -> None:
        """Run the session, and record it in the job's events."""
        await self._write(audit.record_opened)
        began, result = time.monotonic(), "the service failed"
        try:
            result = await self.connect(request, limits)
        except GradientError as error:
            result = f"refused: {error.message}"
            raise
        finally:
            seconds = time.monotonic() - began
            with suppress(StoreUnavailable):  # its beginning is recorded
                await self._write(partial(audit.record_closed, result=result, seconds=seconds))

    async def connect(self, request: dict[str, Any], limits: ExecSettings) -> str:
        """Connect client and worker until one of them ends; return the result."""
        job, record, app_state = self._job, self._record, self._app_state
        async with connect_worker(app_state.settings, job.worker or "") as worker:
            await worker.start(
                {"session": record.id, "key": record.key_id, "job": job.id, "lease": job.lease, **request}
            )
            await self._websocket.send_json({"started": record.id})
            check_key = partial(app_state.lanes.urgent.run, app_state.keys.get, record.key_id)
            return await Bridge(self._websocket, worker, limits, check_key).run()

    async def _write(self, record: Any) -> None:  # noqa: ANN401 - a function of `audit`
        def write() -> None:
            with self._app_state.database.write() as session:
                record(session, self._job, self._record)

        await self._app_state.lanes.changing.run(write)
