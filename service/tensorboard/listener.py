"""The listener of TensorBoard: at the address of jobs' ports, on a port of its own, while there is a board."""

import asyncio
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import cast

import uvicorn

from core.errors import TensorBoardUnavailable
from core.settings import Settings
from service.http.connections import BACKLOG, IDLE_SECONDS, Connection, Connections
from service.tensorboard.board import Board
from service.tensorboard.gateway import Gateway

_MAX_CONNECTIONS = 128
_STOP_SECONDS = 2


class Listener:
    def __init__(self, settings: Settings, find_board: Callable[[str], Board | None]) -> None:
        self._settings = settings
        self._find_board = find_board
        self._server: _Server | None = None
        self._serving: asyncio.Task[None] | None = None
        self.url = ""

    async def start(self) -> None:
        if self._serving is not None:
            return
        listening = self._bind()
        host = f"[{self._settings.ports_host}]" if ":" in self._settings.ports_host else self._settings.ports_host
        self.url = self._settings.tensorboard.url or f"http://{host}:{listening.getsockname()[1]}"
        api = self._settings.api.model_copy(update={"max_connections": _MAX_CONNECTIONS})
        config = uvicorn.Config(
            Gateway(self._find_board, self.url, self._settings.public_url),
            http=cast("type[asyncio.Protocol]", partial(Connection, connections=Connections(api))),
            ws="none",
            lifespan="off",
            timeout_keep_alive=IDLE_SECONDS,
            access_log=False,
            log_config=None,
            server_header=False,
            timeout_graceful_shutdown=_STOP_SECONDS,
        )
        self._server = _Server(config)
        self._serving = asyncio.create_task(self._server.serve([listening]))

    async def close(self) -> None:
        if self._server is not None and self._serving is not None:
            self._server.should_exit = True
            await self._serving

    def _bind(self) -> socket.socket:
        host, port = self._settings.ports.bind, self._settings.tensorboard.port
        listening = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((host, port))
            listening.listen(BACKLOG)
        except OSError as error:
            listening.close()
            raise TensorBoardUnavailable(
                f"TensorBoard cannot be opened at {host}:{port}: {os.strerror(error.errno or 0)}. The server's "
                "operator can set GRADIENT_TENSORBOARD__PORT to a free port, or GRADIENT_PORTS__BIND to an address of "
                "this machine."
            ) from error
        return listening


class _Server(uvicorn.Server):
    """A server beside the service's own, which alone takes the process's signals."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
