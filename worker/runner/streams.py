"""Commands in running jobs, and connections to their ports: the streams that a session carries."""

from __future__ import annotations

import fcntl
import os
import select
import socket
import struct
import subprocess
import termios
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from core.jobs.exec.channel import CHUNK_BYTES, STDERR, STDOUT

_WAIT_SECONDS = 0.2
_HANGUP_SECONDS = 1.0
_SIGNALLED = 128


class ExecRefused(Exception):
    """The job cannot be entered, or the command cannot be started; its text is for the user."""


@dataclass(frozen=True)
class Terminal:
    rows: int
    columns: int
    kind: str


@dataclass(frozen=True)
class ExecRequest:
    id: str  # id of the session: lower-case letters and digits
    command: tuple[str, ...]  # program and arguments; not empty
    terminal: Terminal | None = None  # run it in a terminal like this one; None: with three pipes

    @classmethod
    def of(cls, message: dict[str, Any]) -> ExecRequest:
        """Return the request that a control frame holds."""
        terminal = message["terminal"]
        return cls(message["session"], tuple(message["command"]), Terminal(*terminal) if terminal else None)


class JobStream(ABC):
    """A command in a job, or a connection to one of its ports. Any thread may call any method."""

    @abstractmethod
    def outputs(self) -> Iterator[tuple[int, bytes]]:
        """Yield stream number (1: stdout, 2: stderr) and data, as they come, until the end."""

    @abstractmethod
    def write(self, data: bytes) -> None:
        """Write input, as fast as the job reads it; discard it if the job reads no more."""

    @abstractmethod
    def end_input(self) -> None:
        """Signal the end of the input."""

    @abstractmethod
    def close(self) -> None:
        """End the command with its children, and free what it used; a repeated call has no effect."""

    def resize(self, rows: int, columns: int) -> None:
        """Change the size of the terminal, if there is one."""
        del rows, columns

    def send_signal(self, name: str) -> None:
        """Send a signal, by its name without SIG, to the command and its children."""
        del name

    def exit_code(self) -> int:
        """Return the exit code, once `outputs` has ended; 0 if there is no command."""
        return 0


class ProcessStream(JobStream):
    """A command in a job of this host; see `JobStream`.

    Args:
        child: The process that was started: the command, or the process that waits for it.
        terminal: The master side of its terminal; None: it has pipes.
        signal_command: Sends a signal, by its name, to the command and its children.
    """

    def __init__(
        self, child: subprocess.Popen[bytes], terminal: int | None, signal_command: Callable[[str], None]
    ) -> None:
        self._child = child
        self._signal_command = signal_command
        self._terminal = terminal
        self._closed = threading.Event()
        self._input: int | None = terminal
        self._sources = {} if terminal is None else {terminal: STDOUT}
        if child.stdin and child.stdout and child.stderr:
            self._input = child.stdin.fileno()
            self._sources = {child.stdout.fileno(): STDOUT, child.stderr.fileno(): STDERR}
        if self._input is not None:
            os.set_blocking(self._input, False)
        self._lock = threading.Lock()

    def outputs(self) -> Iterator[tuple[int, bytes]]:
        """See `JobStream.outputs`. Children that keep the pipes open are not waited for."""
        sources, readable = dict(self._sources), select.poll()  # not select(): it refuses descriptors above 1023
        for source in sources:
            readable.register(source, select.POLLIN)
        while sources:
            ended = self._child.poll() is not None
            ready = readable.poll(1000 * _WAIT_SECONDS)
            if not ready and (ended or self._closed.is_set()):
                return
            for source, _ in ready:
                try:
                    data = os.read(source, CHUNK_BYTES)
                except BlockingIOError:
                    continue
                except OSError:  # a terminal whose last process ended
                    data = b""
                if data:
                    yield sources[source], data
                else:
                    readable.unregister(source)
                    del sources[source]

    def write(self, data: bytes) -> None:
        rest, writable = memoryview(data), select.poll()
        while rest and self._input is not None and not self._closed.is_set() and self._child.poll() is None:
            try:
                writable.register(self._input, select.POLLOUT)
                if writable.poll(1000 * _WAIT_SECONDS):
                    rest = rest[os.write(self._input, rest) :]
            except BlockingIOError:
                continue
            except OSError:  # it reads no more
                return

    def end_input(self) -> None:
        """See `JobStream.end_input`; in a terminal, Ctrl-D."""
        if self._terminal is not None:
            self.write(b"\x04")
        elif self._child.stdin is not None:
            self._input = None
            self._child.stdin.close()

    def resize(self, rows: int, columns: int) -> None:
        if self._terminal is not None:
            with suppress(OSError):
                fcntl.ioctl(self._terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def send_signal(self, name: str) -> None:
        with self._lock, suppress(OSError):
            if self._child.poll() is None:
                self._signal_command(name)

    def exit_code(self) -> int:
        code = self._child.wait()
        return code if code >= 0 else _SIGNALLED - code

    def close(self) -> None:
        if self._closed.is_set():
            return
        self._closed.set()
        for name in ("HUP", "KILL"):
            self.send_signal(name)
            with suppress(subprocess.TimeoutExpired):
                self._child.wait(_HANGUP_SECONDS)
                return
        self._child.kill()
        self._child.wait()

    def __del__(self) -> None:
        """Close the descriptors, once no thread uses them any more."""
        if self._terminal is not None:
            os.close(self._terminal)
        for pipe in (self._child.stdin, self._child.stdout, self._child.stderr):
            if pipe is not None:
                pipe.close()


class SocketStream(JobStream):
    """A TCP connection to a job; see `JobStream`."""

    def __init__(self, connection: socket.socket) -> None:
        connection.settimeout(None)
        self._socket = connection

    def outputs(self) -> Iterator[tuple[int, bytes]]:
        with suppress(OSError):
            while data := self._socket.recv(CHUNK_BYTES):
                yield STDOUT, data

    def write(self, data: bytes) -> None:
        with suppress(OSError):
            self._socket.sendall(data)

    def end_input(self) -> None:
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def __del__(self) -> None:
        """Close the connection, once no thread uses it any more."""
        self._socket.close()


def relay(connection: socket.socket, other: socket.socket) -> None:
    """Copy both ways until both have ended, of which one may end first."""
    name = threading.current_thread().name
    back = threading.Thread(target=_copy_until_end, args=(other, connection), name=name, daemon=True)
    back.start()
    _copy_until_end(connection, other)
    back.join()


def _copy_until_end(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while block := source.recv(CHUNK_BYTES):
            target.sendall(block)
    with suppress(OSError):
        target.shutdown(socket.SHUT_WR)
