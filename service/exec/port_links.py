"""Links to ports of jobs on a worker that the service cannot connect to: the service listens in its host's place."""

import asyncio
import logging
from contextlib import suppress
from functools import partial
from typing import NamedTuple

from sqlalchemy import select, update

from core.db.models.jobs import Job, PortAllocation
from core.errors import GradientError, StoreUnavailable
from core.ids import new_id
from core.jobs.exec import audit, channel
from service.app_state import AppState
from service.exec.bridge import WorkerChannel, connect_worker

logger = logging.getLogger(__name__)

_POLL_SECONDS = 2.0


class _Link(NamedTuple):
    job_id: str
    attempt: int
    lease: int
    internal: int
    port: int


class PortLinks:
    """Opens the ports of one worker's jobs here, those whose links lead to no address of the worker's host."""

    def __init__(self, app_state: AppState, worker: str) -> None:
        self._app_state = app_state
        self._worker = worker
        self._refused: set[_Link] = set()

    async def run(self) -> None:
        """Keep the links of jobs that run, until this is cancelled."""
        links: dict[_Link, asyncio.Task[None]] = {}
        try:
            while True:
                with suppress(StoreUnavailable):
                    wanted = await self._app_state.lanes.reading.run(self._find_links)
                    for gone in links.keys() - wanted:
                        links.pop(gone).cancel()
                    for link in wanted:
                        if link not in links or links[link].done():
                            links[link] = asyncio.create_task(self._open(link))
                await asyncio.sleep(_POLL_SECONDS)
        finally:
            for task in links.values():
                task.cancel()
            await asyncio.gather(*links.values(), return_exceptions=True)

    def _find_links(self) -> set[_Link]:
        of_job = (Job.id == PortAllocation.job_id) & (Job.attempt == PortAllocation.attempt)
        addresses = ("", self._app_state.settings.ports_host)
        with self._app_state.database.read() as session:
            rows = session.execute(
                select(Job.id, Job.attempt, Job.lease, PortAllocation.internal, PortAllocation.port)
                .join(Job, of_job)
                .where(Job.worker == self._worker, Job.state.in_(audit.ENTERABLE))
                .where(PortAllocation.address.in_(addresses))
            ).all()
        return {_Link(*row) for row in rows}

    async def _open(self, link: _Link) -> None:
        """Listen until this is cancelled; if that cannot be, return, to be tried again."""
        try:
            connect = partial(self._connect, link)
            server = await asyncio.start_server(connect, self._app_state.settings.ports.bind, link.port)
        except OSError as error:
            if link not in self._refused:
                logger.warning("port_link_not_opened", extra={"job_id": link.job_id, "why": str(error)})
            self._refused.add(link)
            return
        async with server:
            await self._app_state.lanes.changing.run(self.publish, link)
            await asyncio.Event().wait()

    def publish(self, link: _Link) -> None:
        of_attempt = PortAllocation.job_id == link.job_id, PortAllocation.attempt == link.attempt
        of_link = update(PortAllocation).where(*of_attempt, PortAllocation.port == link.port)
        with self._app_state.database.write() as session:
            session.execute(of_link.values(address=self._app_state.settings.ports_host))

    async def _connect(self, link: _Link, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with (
                self._app_state.limits.exec_connections.slot(link.job_id),
                connect_worker(self._app_state.settings, self._worker) as worker,
            ):
                session = {"session": new_id("e"), "key": "", "job": link.job_id, "lease": link.lease}
                await worker.start({**session, "port": link.internal, "direct": True})
                sending = asyncio.create_task(_send(reader, worker))
                try:
                    await _receive(worker, writer)
                finally:
                    sending.cancel()
        except (GradientError, OSError) as error:
            logger.debug("port_connection_ended", extra={"why": str(error)})
        finally:
            writer.close()


async def _send(reader: asyncio.StreamReader, worker: WorkerChannel) -> None:
    with suppress(OSError):  # an end like others
        while data := await reader.read(channel.CHUNK_BYTES):
            await worker.send(channel.encode(channel.INPUT, data))
        await worker.send(channel.encode_control({"eof": True}))


async def _receive(worker: WorkerChannel, writer: asyncio.StreamWriter) -> None:
    while (frame := await worker.receive()) is not None and frame[0] == channel.OUTPUT:
        writer.write(frame[1][1:])  # after the number of the stream
        await writer.drain()
