"""uvicorn, told to end followed logs before it waits for its connections to close."""

import socket

import uvicorn
from fastapi import FastAPI

from service.deps import OpenStores

_GRACEFUL_SECONDS = 10
_HEADER_BYTES = 64 * 1024


class Server(uvicorn.Server):
    """Serves one application of `service.main.create_app`.

    Args:
        app: The application.
        host: Address to listen on; default: the settings'.
        port: Port to listen on; 0 picks a free one.
    """

    def __init__(self, app: FastAPI, *, host: str | None = None, port: int | None = None) -> None:
        self._stores: OpenStores = app.state.stores
        api = self._stores.settings.api
        config = uvicorn.Config(
            app,
            host=host or api.host,
            port=api.port if port is None else port,
            lifespan="on",
            access_log=False,
            log_config=None,
            server_header=False,
            h11_max_incomplete_event_size=_HEADER_BYTES,
            timeout_graceful_shutdown=_GRACEFUL_SECONDS,
        )
        super().__init__(config)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop: first the streams, which would not end by themselves, then the rest."""
        self._stores.streams.stop()
        await super().shutdown(sockets)
