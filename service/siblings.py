"""Calls between the API processes that share a port, over sockets that they inherit."""

import asyncio
import logging
import pickle
import socket
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from core.errors import GradientError

logger = logging.getLogger(__name__)

FIRST = 0  # number of the process that has what exists once: TensorBoards, counts of job events, and the worker of `up`
_HEAD_BYTES = 4

Channel = tuple[socket.socket, socket.socket]
"""The end at which one process takes connections, and the end over which the others send them."""


def open_channels(processes: int) -> list[Channel]:
    """Open a channel for each process; they stay open when a process ends, for its successor."""
    return [_open_channel() for _ in range(processes)]


def _open_channel() -> Channel:
    takes, sends = socket.socketpair(type=socket.SOCK_SEQPACKET)
    takes.settimeout(0)
    sends.settimeout(0)
    return takes, sends


class Siblings:
    """The API processes of one service, this one among them, which is the only one unless it joins others."""

    def __init__(self) -> None:
        self.number = FIRST
        self.answers: dict[str, Callable[..., Awaitable[Any]]] = {}
        self._channels: Sequence[Channel] = ()
        self._answering: set[asyncio.Task[None]] = set()

    def join(self, number: int, channels: Sequence[Channel]) -> None:
        """Become one of several, each of which has a channel; before `start`."""
        self.number, self._channels = number, channels

    @property
    def count(self) -> int:
        return len(self._channels) or 1

    def start(self) -> None:
        """Answer the others, in the running event loop."""
        if self._channels:
            asyncio.get_running_loop().add_reader(self._channels[self.number][0], self._take_connection)

    def stop(self) -> None:
        if self._channels:
            asyncio.get_running_loop().remove_reader(self._channels[self.number][0])

    async def call(self, number: int, name: str, *arguments: object, seconds: float) -> Any:  # noqa: ANN401 - any answer
        """Return the answer of a process. Raises `OSError`: it gave none in time: it has ended, and starts again."""
        if number == self.number:
            return await self.answers[name](*arguments)
        ours, theirs = socket.socketpair()
        reader, writer = await asyncio.open_unix_connection(sock=ours)
        try:
            with theirs:
                socket.send_fds(self._channels[number][1], [b"c"], [theirs.fileno()])
            async with asyncio.timeout(seconds):
                await _send(writer, (name, arguments))
                answer = await _receive(reader)
        except asyncio.IncompleteReadError as error:
            raise ConnectionError("the process ended before it answered") from error
        finally:
            writer.close()
        if isinstance(answer, GradientError):
            raise answer
        return answer

    def _take_connection(self) -> None:
        try:
            _, descriptors, _, _ = socket.recv_fds(self._channels[self.number][0], 1, 1)
        except BlockingIOError:
            return
        for descriptor in descriptors:
            task = asyncio.create_task(self._answer(socket.socket(fileno=descriptor)))
            self._answering.add(task)
            task.add_done_callback(self._answering.discard)

    async def _answer(self, connection: socket.socket) -> None:
        reader, writer = await asyncio.open_unix_connection(sock=connection)
        try:
            name, arguments = await _receive(reader)
            answer: object
            try:
                answer = await self.answers[name](*arguments)
            except GradientError as error:
                answer = error
            await _send(writer, answer)
        except (OSError, asyncio.IncompleteReadError):
            pass  # whoever asked has ended, or waits no more
        except Exception:  # it gets no answer
            logger.exception("sibling_not_answered")
        finally:
            writer.close()


async def _send(writer: asyncio.StreamWriter, value: object) -> None:
    content = pickle.dumps(value)
    writer.write(len(content).to_bytes(_HEAD_BYTES) + content)
    await writer.drain()


async def _receive(reader: asyncio.StreamReader) -> Any:  # noqa: ANN401 - what `_send` sent
    content = await reader.readexactly(int.from_bytes(await reader.readexactly(_HEAD_BYTES)))
    return pickle.loads(content)  # noqa: S301 - from a process of this service, over sockets that no other has
