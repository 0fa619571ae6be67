"""Carries users' sessions in frames: between service and worker, and between a worker and the machine of a job."""

from __future__ import annotations

import errno
import logging
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any

from core.jobs.exec import channel
from worker.runner.streams import ExecRefused, JobStream, SocketStream

logger = logging.getLogger(__name__)

ENDED = "The job has ended."
KILLED = 128 + signal.SIGKILL  # exit code of a command that perhaps ended with its job
LINGER_SECONDS = 10.0
ACCEPT_PAUSE_SECONDS = 0.2
_MAX_TERMINAL = 10_000
_MAX_TEXT = 1000
_MAX_EXIT_CODE = 255


def accept_all(listener: socket.socket, serve: Callable[[socket.socket], None], name: str) -> None:
    """Serve each connection in a thread of this name, until the listener is closed."""
    refused = False
    while True:
        try:
            connection, _ = listener.accept()
        except OSError as error:
            if error.errno in {errno.EINVAL, errno.EBADF}:  # it is shut down, or closed
                return
            if not refused:
                logger.warning("session_not_accepted", exc_info=True)
            refused = True
            time.sleep(ACCEPT_PAUSE_SECONDS)  # no descriptor is free, for example
            continue
        refused = False
        threading.Thread(target=serve, args=(connection,), name=name, daemon=True).start()


def carry(
    connection: socket.socket,
    stream: JobStream | None,
    on_disconnect: Callable[[], None],
    find_end: Callable[[], Mapping[str, object]],
) -> threading.Thread:
    """Announce a session, and pass the job's output on to the client, as fast as it reads, until there is no more.

    Then the last message follows, from `find_end`. The client's input goes to the job in the thread that is returned,
    until the client is gone: then nobody needs the session, and `on_disconnect` is called. Once the stream is closed,
    wait for this thread, for LINGER_SECONDS: closed with input unread, or while more is sent, the connection would
    break before its last frame is read.
    """
    connection.sendall(channel.encode_control({"started": True}))
    thread = threading.Thread(target=_feed, args=(connection, stream, on_disconnect), name="session-input", daemon=True)
    thread.start()
    try:
        for number, data in stream.outputs() if stream is not None else ():
            connection.sendall(channel.encode(channel.OUTPUT, bytes([number]) + data))
        connection.sendall(channel.encode_control(find_end()))
        connection.shutdown(socket.SHUT_WR)
    except OSError:
        logger.debug("exec_output_ended", exc_info=True)
    return thread


def _feed(connection: socket.socket, stream: JobStream | None, on_disconnect: Callable[[], None]) -> None:
    try:
        while (frame := channel.receive(connection)) is not None:
            kind, payload = frame
            if stream is None:
                continue
            try:
                if kind == channel.INPUT:
                    stream.write(payload)
                else:
                    _control(stream, channel.decode_control(payload))
            except OSError:  # the command has ended, or closed its input
                stream = None
    except (OSError, channel.ChannelBroken, ValueError, TypeError, KeyError):
        logger.debug("exec_input_ended", exc_info=True)
    on_disconnect()


def _control(stream: JobStream, message: dict[str, Any]) -> None:
    if message.get("eof"):
        stream.end_input()
    elif "resize" in message:
        rows, columns = (min(max(int(count), 1), _MAX_TERMINAL) for count in message["resize"])
        stream.resize(rows, columns)
    elif "signal" in message:
        stream.send_signal(signal.Signals[f"SIG{message['signal']}"].name.removeprefix("SIG"))


def printable(text: object) -> str:
    """Return what another machine sent as a message, so that users can be shown it."""
    return "".join(letter if letter.isprintable() else "?" for letter in str(text)[:_MAX_TEXT])


class RemoteStream(SocketStream):
    """A command that another machine carries here. Nothing that it sends is certain."""

    def __init__(self, connection: socket.socket) -> None:
        super().__init__(connection)
        self._lock = threading.Lock()
        self._end: dict[str, Any] = {}

    def outputs(self) -> Iterator[tuple[int, bytes]]:
        with suppress(OSError, channel.ChannelBroken):
            while (frame := channel.receive(self._socket)) is not None:
                kind, payload = frame
                if kind != channel.OUTPUT:
                    self._end = channel.decode_control(payload)
                    return
                yield channel.STDERR if payload[:1] == b"\2" else channel.STDOUT, payload[1:]

    def write(self, data: bytes) -> None:
        self._send(channel.encode(channel.INPUT, data))

    def end_input(self) -> None:
        self._send(channel.encode_control({"eof": True}))

    def resize(self, rows: int, columns: int) -> None:
        self._send(channel.encode_control({"resize": [rows, columns]}))

    def send_signal(self, name: str) -> None:
        self._send(channel.encode_control({"signal": name}))

    def _send(self, frame: bytes) -> None:
        with self._lock:
            super().write(frame)

    def exit_code(self) -> int:
        code = self._end.get("exit")
        if type(code) is int and 0 <= code <= _MAX_EXIT_CODE:
            return code
        raise ExecRefused(printable(self._end.get("ended", "The connection to the job's machine was lost.")))
