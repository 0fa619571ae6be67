"""Exec sessions and port connections of jobs on a host that the service cannot connect to."""

import asyncio
import logging
import random
import threading
from collections.abc import AsyncIterator
from contextlib import suppress

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake

from core.errors import StoreUnavailable
from core.jobs.exec import channel
from core.jobs.exec.tunnel import Streams, Tunnel
from worker.context import WorkerContext
from worker.service_link.link import ServiceLink

logger = logging.getLogger(__name__)

_PAUSE_SECONDS = 1.0
_PING_SECONDS = 5.0
"""A link that is cut without a word is found after twice this time."""


class ServiceTunnel:
    """Keeps one connection to the service, and passes what comes over it to this worker's own socket."""

    def __init__(self, context: WorkerContext, link: ServiceLink) -> None:
        self._context = context
        self._link = link
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="tunnel", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(lambda: [task.cancel() for task in asyncio.all_tasks(self._loop)])
        self._thread.join()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner, suppress(asyncio.CancelledError):
            runner.run(self._keep_open())

    async def _keep_open(self) -> None:
        while True:
            try:
                await self._serve()
            except (OSError, InvalidHandshake, TimeoutError, StoreUnavailable, channel.ChannelBroken) as error:
                logger.debug("tunnel_not_open", extra={"why": str(error)})
            except Exception:  # the next connection may do better
                logger.exception("tunnel_failed")
            await asyncio.sleep(_PAUSE_SECONDS * random.uniform(0.5, 1.5))  # noqa: S311 - not all workers at once

    async def _serve(self) -> None:
        async with connect(
            self._link.tunnel_url,
            additional_headers=self._link.headers(),
            compression=None,
            proxy=None,
            ping_interval=_PING_SECONDS,
            ping_timeout=_PING_SECONDS,
        ) as service:
            with suppress(ConnectionClosed):
                await Tunnel(service.send, self._connect).run(_messages(service))

    async def _connect(self) -> Streams:
        with channel.socket_address(self._context.settings.root, self._context.worker_name) as address:
            return Streams(*await asyncio.open_unix_connection(address))


async def _messages(service: ClientConnection) -> AsyncIterator[bytes]:
    async for message in service:
        if isinstance(message, bytes):
            yield message
