"""The connection over which users' sessions reach jobs on a worker that the service cannot connect to."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress

from fastapi import WebSocket
from starlette.websockets import WebSocketDisconnect

from core.errors import GradientError, StoreUnavailable
from core.jobs.exec import channel
from core.jobs.exec.tunnel import Tunnel
from service.app_state import AppState
from service.deps import AppStateDep
from service.exec.port_links import PortLinks
from service.http.routing import Router
from service.routes.worker.files import TokenDep, WorkerDep, authenticate

router = Router()

_CHECK_SECONDS = 5.0
_REFUSED = 1008


@router.websocket("/worker/tunnel")
async def carry_sessions(websocket: WebSocket, app_state: AppStateDep, worker: WorkerDep, token: TokenDep) -> None:
    """Listen at the worker's socket in its place, for any API process of this host, while it is connected."""
    await websocket.accept()
    tunnel = Tunnel(websocket.send_bytes)
    listener = channel.listen(app_state.settings.root, worker)
    async with await asyncio.start_unix_server(tunnel.open, sock=listener):
        links = PortLinks(app_state, worker)
        running = (tunnel.run(_messages(websocket)), _watch(app_state, token), links.run())
        tasks = [asyncio.create_task(session_run) for session_run in running]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
    with suppress(WebSocketDisconnect, RuntimeError):
        await websocket.close(_REFUSED)


async def _messages(websocket: WebSocket) -> AsyncIterator[bytes]:
    with suppress(WebSocketDisconnect):
        while True:
            yield await websocket.receive_bytes()


async def _watch(app_state: AppState, token: str) -> None:
    """Return once the worker's token is revoked."""
    with suppress(GradientError):
        while True:
            await asyncio.sleep(_CHECK_SECONDS)
            with suppress(StoreUnavailable):
                await authenticate(app_state, token)
