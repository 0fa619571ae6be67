"""Exec sessions: commands, shells and port connections in running jobs, over WebSockets.

Authentication is by a key in a header alone: a page of another site can send neither. Only the terminal in the
dashboard also takes the browser's session, from the dashboard's own pages.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import Annotated
from urllib.parse import urlsplit

from fastapi import Depends, WebSocket
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection
from starlette.websockets import WebSocketDisconnect

from core.db.models.jobs import Job
from core.errors import ExecDisabled, GradientError, SpecInvalid
from core.jobs.exec import audit
from service.app_state import AppState
from service.auth.authentication import Caller, PageCaller
from service.deps import AppStateDep
from service.exec.bridge import Session
from service.http.routing import api_router
from service.schemas.base import check_texts

router = api_router(prefix="/jobs", tags=["exec"])

_REFUSED = 1008
_REQUEST_SECONDS = 10.0
_MAX_COMMAND_BYTES = 128 * 1024
_Size = Annotated[int, Field(ge=1, le=10_000)]


@router.websocket("/{job_id}/exec")
async def run_in_job(websocket: WebSocket, app_state: AppStateDep, caller: Caller, job_id: str) -> None:
    """Run a command in a job."""
    async with _entering(websocket, app_state, app_state.limits.exec_sessions.slot(caller.id), job_id) as job:
        wanted = await read_command(websocket)
        terminal = wanted.terminal
        action = audit.describe_command(wanted.command, tty=terminal is not None)
        size = (terminal.rows, terminal.columns, terminal.term) if terminal else None
        request = {"command": wanted.command, "terminal": size}
        await Session(app_state, caller, job, action).run(websocket, request)


async def require_own_page(connection: HTTPConnection, app_state: AppStateDep) -> None:
    """Refuse a WebSocket that no page of this service opened: browsers send cookies with those of other sites, too."""
    ours = {connection.headers.get("host", ""), urlsplit(app_state.settings.public_url).netloc} - {""}
    if urlsplit(connection.headers.get("origin", "")).netloc not in ours:
        raise HTTPException(403, "The terminal was not opened by a page of this service.")


@router.websocket("/{job_id}/terminal", dependencies=[Depends(require_own_page)])
async def open_terminal(websocket: WebSocket, app_state: AppStateDep, caller: PageCaller, job_id: str) -> None:
    """Run a command in a job, for the dashboard's page of its terminal."""
    await run_in_job(websocket, app_state, caller, job_id)


@router.websocket("/{job_id}/forward")
async def forward_port(websocket: WebSocket, app_state: AppStateDep, caller: Caller, job_id: str) -> None:
    """Open a port session: connections to one port of a job may be made until it ends."""
    port = parse_port(websocket.query_params.get("port"))
    async with _entering(websocket, app_state, app_state.limits.exec_sessions.slot(caller.id), job_id) as job:
        session = Session(app_state, caller, job, f"connections to port {port}")
        await session.run(websocket, {"port": port}, ends_when_idle=False)  # its connections are idle or not


@router.websocket("/{job_id}/forward/{session_id}")
async def connect_to_port(
    websocket: WebSocket, app_state: AppStateDep, caller: Caller, job_id: str, session_id: str
) -> None:
    """Make a connection of a port session."""
    async with _entering(websocket, app_state, app_state.limits.exec_connections.slot(caller.id), job_id) as job:
        await Session(app_state, caller, job, "connection").connect(websocket, {"parent": session_id})


@asynccontextmanager
async def _entering(
    websocket: WebSocket, app_state: AppState, slot: AbstractAsyncContextManager[None], job_id: str
) -> AsyncIterator[Job]:
    """Accept the WebSocket of a session in a job, and send it an error that comes after that."""
    async with slot:
        job = await app_state.lanes.reading.run(_find_job, app_state, job_id)
        await websocket.accept()
        try:
            yield job
        except GradientError as error:
            with suppress(WebSocketDisconnect, RuntimeError):
                await websocket.send_json({"refused": error.message, "name": type(error).__name__})
                await websocket.close(_REFUSED)
        except WebSocketDisconnect:
            return


def _find_job(app_state: AppState, job_id: str) -> Job:
    if not app_state.settings.exec.enabled:
        raise ExecDisabled
    check_texts(job_id, "jobId")
    with app_state.database.read() as session:
        return audit.enterable_job(session, job_id)


class ExecTerminal(BaseModel):
    model_config = ConfigDict(extra="forbid")

    rows: _Size
    columns: _Size
    term: str = Field(default="xterm", pattern=r"^[A-Za-z0-9._+-]{1,64}$")


class ExecCommand(BaseModel):
    """The command, and the terminal that it gets; without one it gets three pipes."""

    model_config = ConfigDict(extra="forbid")

    command: list[str] = Field(min_length=1, max_length=10_000)
    terminal: ExecTerminal | None = None

    @field_validator("command")
    @classmethod
    def _is_passable(cls, command: list[str]) -> list[str]:
        if not command[0]:
            raise ValueError("the program has no name")
        if any("\0" in word for word in command):
            raise ValueError("a word contains a NUL character")
        if sum(len(word.encode()) + 1 for word in command) > _MAX_COMMAND_BYTES:
            raise ValueError(f"it is longer than {_MAX_COMMAND_BYTES // 1024} KiB; put it into a script")
        return command


async def read_command(websocket: WebSocket) -> ExecCommand:
    """Read the first message of a session. Raises `WebSocketDisconnect`: the client is gone."""
    try:
        async with asyncio.timeout(_REQUEST_SECONDS):
            text = await websocket.receive_text()
        return ExecCommand.model_validate_json(text)
    except TimeoutError as error:
        raise SpecInvalid(f"No command came within {_REQUEST_SECONDS:.0f} seconds.", field="command") from error
    except KeyError as error:
        raise SpecInvalid("The first message must be text: the command as JSON.", field="command") from error
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"])
        raise SpecInvalid(f"{field or 'The command'}: {first['msg'].removeprefix('Value error, ')}.") from error


def parse_port(text: str | None) -> int:
    if text is None or not (text.isascii() and text.isdecimal()) or not 1 <= int(text[:6]) <= 65535:  # noqa: PLR2004 - the largest port
        raise SpecInvalid(f"port: a number from 1 to 65535, not {text!r:.40}.", field="port")
    return int(text)
