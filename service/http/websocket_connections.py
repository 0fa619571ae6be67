"""Connections that became WebSockets: limits of their frames, and a timeout for sending.

uvicorn's own protocol answers every ping at once, whether or not the client reads, and parses without limit what one
turn of the event loop receives.
"""

import asyncio
import fcntl
import logging
import math
import struct
import termios
from time import monotonic
from typing import Any, Protocol

from uvicorn._types import ASGISendEvent
from uvicorn.config import Config
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.server import ServerState
from websockets.exceptions import ProtocolError
from websockets.frames import CTRL_OPCODES, CloseCode, Frame, Opcode
from websockets.server import ServerProtocol

BLOCK_BYTES = 16 * 1024  # most bytes that one turn of the event loop receives and parses: 2,730 empty frames

FRAMES_PER_SECOND = 1000
"""Most frames of one client that carry no data, control the connection, or leave their message incomplete."""

MAX_FRAGMENTS = 1024  # most frames of one message


_CLOSE_CHECK_SECONDS = 10.0


class LimitedFrames(ServerProtocol):
    """A parser of frames that ends the connection with code 1008 at a limit of their number.

    A client may send `FRAMES_PER_SECOND` at once, too. Final frames with data are not limited. `max_size`: bytes of the
    longest message.
    """

    def __init__(self, max_size: int | None, logger: logging.Logger) -> None:
        super().__init__(max_size=max_size, logger=logger)
        self._budget = float(FRAMES_PER_SECOND)
        self._counted_at = monotonic()
        self._fragments = 0

    def recv_frame(self, frame: Frame) -> None:
        is_control = frame.opcode in CTRL_OPCODES
        if is_control or not frame.fin or not frame.data:
            now = monotonic()
            self._budget = min(FRAMES_PER_SECOND, self._budget + (now - self._counted_at) * FRAMES_PER_SECOND)
            self._counted_at = now
            if self._budget < 1:
                self._refuse(f"Send at most {FRAMES_PER_SECOND} control frames, fragments and empty frames per second.")
            self._budget -= 1
        if not is_control:
            self._fragments = self._fragments + 1 if frame.opcode is Opcode.CONT else 1
            if self._fragments > MAX_FRAGMENTS:
                self._refuse(f"A message may have at most {MAX_FRAGMENTS} fragments.")
        super().recv_frame(frame)

    def _refuse(self, reason: str) -> None:
        self.fail(CloseCode.POLICY_VIOLATION, reason)
        raise ProtocolError(reason)  # ends the parsing; the code remains the first one


class Upgraded(Protocol):
    """The connection that a WebSocket was before."""

    def websocket_accepted(self) -> None: ...

    def websocket_closed(self) -> None: ...


class WebSocketConnection(WebSocketsSansIOProtocol, asyncio.BufferedProtocol):
    upgraded_from: Upgraded | None = None
    send_seconds: float  # seconds that the client may read nothing of what is sent before the connection is aborted

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,  # the event loop; default: the running one
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.conn = LimitedFrames(config.ws_max_size, self.logger)
        self._block = bytearray(BLOCK_BYTES)
        self._pongs: list[bytes] = []
        self._write_deadline: asyncio.TimerHandle | None = None
        self._end_deadline: asyncio.TimerHandle | None = None
        self.close_timeout = math.inf  # uvicorn's own: a client's next ping would meet a closed socket, and the kernel
        # of the client would throw away what the client has not read yet

    def get_buffer(self, sizehint: int) -> bytearray:  # noqa: ARG002 - asyncio's interface
        return self._block

    def buffer_updated(self, nbytes: int) -> None:
        self.data_received(bytes(self._block[:nbytes]))

    async def send(self, message: ASGISendEvent) -> None:
        await super().send(message)
        if message["type"] == "websocket.accept" and self.upgraded_from is not None:
            self.upgraded_from.websocket_accepted()
        if self.initial_response is not None and self.close_sent:
            self.handshake_complete = True  # it was refused; uvicorn would log that as an error

    def handle_ping(self) -> None:
        """Answer a ping; while the client reads nothing, remember the last one alone, as RFC 6455 (5.5.3) allows."""
        if self.writable.is_set() or self.conn.close_rcvd is not None:  # then the closing frame is to be sent, too
            super().handle_ping()
        else:
            self._pongs = self.conn.data_to_send()[-1:]

    def handle_parser_exception(self) -> None:
        """Close the connection after a frame that breaks the protocol or a limit."""
        if self.conn.close_sent is None:  # a frame before the handshake was answered: the client expects no close
            self.transport.abort()
        else:
            super().handle_parser_exception()

    def pause_writing(self) -> None:
        """Pause sending, because the client does not read, and start the timeout."""
        super().pause_writing()
        if self._write_deadline is None:
            self._write_deadline = self.loop.call_later(self.send_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop_write_deadline()
        pongs, self._pongs = self._pongs, []
        if not self.transport.is_closing():
            self.transport.write(b"".join(pongs))

    def keepalive_timeout(self) -> None:
        """Abort the connection of a client that answers no ping: it may never read what is still unsent."""
        super().keepalive_timeout()
        self.transport.abort()

    async def run_asgi(self) -> None:
        """Run the application, and close the connection even if the client reads nothing more."""
        await super().run_asgi()
        if not self.disconnected:
            self._await_close(math.inf, self.loop.time())

    def _await_close(self, unread: float, since: float) -> None:
        """Abort the connection when the client's host has taken nothing for the timeout, and has not closed it.

        Args:
            unread: Bytes that it had not taken.
            since: Time of the event loop at which this was found.
        """
        now = self.loop.time()
        left = self.transport.get_write_buffer_size() + _unsent_bytes(self.transport)
        if left < unread:
            unread, since = left, now
        if now - since >= self.send_seconds:
            self.transport.abort()
        else:
            pause = min(_CLOSE_CHECK_SECONDS, since + self.send_seconds - now)
            self._end_deadline = self.loop.call_later(pause, self._await_close, unread, since)

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the timeouts and stop counting the connection."""
        super().connection_lost(exc)
        self._stop_write_deadline()
        if self._end_deadline is not None:
            self._end_deadline.cancel()
        if self.upgraded_from is not None:
            self.upgraded_from.websocket_closed()

    def _stop_write_deadline(self) -> None:
        if self._write_deadline is not None:
            self._write_deadline.cancel()
            self._write_deadline = None


def _unsent_bytes(transport: asyncio.Transport) -> int:
    """Return the bytes that the kernel has and the client's has not confirmed."""
    connection = transport.get_extra_info("socket")
    if connection is None or connection.fileno() < 0:
        return 0
    return int(struct.unpack("i", fcntl.ioctl(connection.fileno(), termios.TIOCOUTQ, b"\0" * 4))[0])
