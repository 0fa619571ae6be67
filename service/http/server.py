"""uvicorn with limits of connections, and a shutdown that ends log streams before it waits for connections to close."""

import asyncio
import socket
from functools import partial
from typing import cast

import uvicorn
from fastapi import FastAPI

from core.jobs.exec.channel import MAX_PAYLOAD
from service.app_state import AppState
from service.exec.bridge import PING_SECONDS
from service.http.connections import BACKLOG, IDLE_SECONDS, Connection, Connections, ConnectionTimes
from service.http.websocket_connections import WebSocketConnection

_GRACEFUL_SECONDS = 10
_HEADER_BYTES = 64 * 1024


class Server(uvicorn.Server):
    """A server for one application of `service.main.create_app`."""

    def __init__(
        self,
        app: FastAPI,
        *,
        host: str | None = None,  # address to listen on; default: the settings'
        port: int | None = None,  # port to listen on; 0 picks a free one
        times: ConnectionTimes = ConnectionTimes(),  # timeouts of connections
    ) -> None:
        self._app_state: AppState = app.state.app_state
        api = self._app_state.settings.api
        self._connections = Connections(api, times)
        config = uvicorn.Config(
            app,
            host=host or api.host,
            port=api.port if port is None else port,
            http=cast("type[asyncio.Protocol]", partial(Connection, connections=self._connections)),
            ws=WebSocketConnection,
            ws_max_size=MAX_PAYLOAD,
            ws_ping_interval=PING_SECONDS,
            # A client that reads nothing answers no ping either.
            ws_ping_timeout=times.reading,
            ws_per_message_deflate=False,
            backlog=BACKLOG,
            timeout_keep_alive=IDLE_SECONDS,
            proxy_headers=bool(api.trusted_proxies),
            forwarded_allow_ips=api.trusted_proxies,
            lifespan="on",
            access_log=False,
            log_config=None,
            server_header=False,
            h11_max_incomplete_event_size=_HEADER_BYTES,
            timeout_graceful_shutdown=_GRACEFUL_SECONDS,
        )
        super().__init__(config)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        asyncio.get_running_loop().set_exception_handler(self._connections.loop_failed)
        if self._app_state.siblings.count > 1:
            self.config.backlog = 1  # accept one connection at a time, so that each process gets some of many
        await super().startup(sockets)
        for listener in sockets or ():
            listener.listen(BACKLOG)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop serving: first the streams, which would not end by themselves."""
        self._app_state.streams.stop()
        await super().shutdown(sockets)
