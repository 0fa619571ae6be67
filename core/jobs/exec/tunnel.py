"""Many connections over one WebSocket: those to a worker's socket, which the service cannot reach itself.

A message is a kind (one byte), the number of a connection (four bytes, big endian) and a payload. The service opens
connections (OPEN). Each side sends DATA, at most `WINDOW_BYTES` more than the other has passed on (TAKEN, with a number
of bytes), so that one whose reader waits holds up no other; and END after its last data.
"""

import asyncio
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import NamedTuple

from core.jobs.exec.channel import CHUNK_BYTES, ChannelBroken

WINDOW_BYTES = 8 * CHUNK_BYTES
_OPEN, _DATA, _TAKEN, _END = range(4)
_HEAD = struct.Struct("!BI")
_COUNT = struct.Struct("!I")


class Streams(NamedTuple):
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter


class _Connection:
    def __init__(self) -> None:
        self.arrived: asyncio.Queue[bytes] = asyncio.Queue(WINDOW_BYTES)
        self.waiting = 0  # bytes in `arrived`
        self.sent = 0  # bytes that the other side has not passed on
        self.taken = asyncio.Event()


class Tunnel:
    """One side of the tunnel.

    Args:
        send: Sends a message.
        connect: Makes the connection for which the other side opened one. Raises `OSError`. None: it must not.
    """

    def __init__(
        self, send: Callable[[bytes], Awaitable[None]], connect: Callable[[], Awaitable[Streams]] | None = None
    ) -> None:
        self._send = send
        self._connect = connect
        self._connections: dict[int, _Connection] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._last = 0

    async def run(self, messages: AsyncIterator[bytes]) -> None:
        """Carry connections until there are no more messages, then break them."""
        try:
            async for message in messages:
                self._take(message)
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def open(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Carry a connection of this side."""
        self._last += 1
        self._start(self._last, Streams(reader, writer))

    def _start(self, number: int, streams: Streams | None) -> None:
        self._connections[number] = connection = _Connection()
        task = asyncio.create_task(self._carry(number, connection, streams))
        self._tasks.add(task)
        task.add_done_callback(self._forget)

    def _forget(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # a message that could not be sent: the tunnel ends

    def _take(self, message: bytes) -> None:
        try:
            kind, number = _HEAD.unpack_from(message)
            payload = message[_HEAD.size :]
            connection = self._connections.get(number)
            if kind == _OPEN and self._connect is not None and connection is None:
                self._start(number, None)
            elif kind == _OPEN:
                raise ChannelBroken(f"connection {number} opened")
            elif connection is None:  # it has ended meanwhile
                return
            elif kind == _TAKEN:
                connection.sent -= _COUNT.unpack(payload)[0]
                connection.taken.set()
            else:
                connection.waiting += len(payload)
                if connection.waiting > WINDOW_BYTES:
                    raise ChannelBroken(f"more than {WINDOW_BYTES} bytes")
                connection.arrived.put_nowait(b"" if kind == _END else payload)
        except (struct.error, asyncio.QueueFull) as error:
            raise ChannelBroken(f"a message of {len(message)} bytes") from error

    async def _carry(self, number: int, connection: _Connection, streams: Streams | None) -> None:
        try:
            if streams is None:
                streams = await self._connect_here(number)
            else:
                await self._send(_HEAD.pack(_OPEN, number))
            if streams is not None:
                async with asyncio.TaskGroup() as both:
                    both.create_task(self._send_all(number, connection, streams.reader))
                    both.create_task(self._pass_on(number, connection, streams.writer))
        finally:
            self._connections.pop(number, None)
            if streams is not None:
                streams.writer.close()

    async def _connect_here(self, number: int) -> Streams | None:
        try:
            return await self._connect() if self._connect else None
        except OSError:
            await self._send(_HEAD.pack(_END, number))
            return None

    async def _send_all(self, number: int, connection: _Connection, reader: asyncio.StreamReader) -> None:
        with suppress(OSError):  # an end like others
            while data := await reader.read(CHUNK_BYTES):
                while connection.sent + len(data) > WINDOW_BYTES:
                    connection.taken.clear()
                    await connection.taken.wait()
                connection.sent += len(data)
                await self._send(_HEAD.pack(_DATA, number) + data)
        await self._send(_HEAD.pack(_END, number))

    async def _pass_on(self, number: int, connection: _Connection, writer: asyncio.StreamWriter) -> None:
        while data := await connection.arrived.get():
            with suppress(OSError):  # whoever reads here is gone, which `_send_all` tells
                writer.write(data)
                await writer.drain()
            connection.waiting -= len(data)
            await self._send(_HEAD.pack(_TAKEN, number) + _COUNT.pack(len(data)))
        with suppress(OSError):
            writer.write_eof()
