"""Commands in jobs' containers, by the engine's exec calls, and connections to their ports.

The engine ends a command only with its container, so each writes its pid to the control folder first, and is signalled
by another command. Ports are reached by a small program in the container: its addresses are not reachable from every
worker, and a job may listen on its localhost alone.
"""

import contextlib
import io
import struct
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from core.jobs.exec.channel import CHUNK_BYTES, STDERR, STDOUT
from worker.backends import base
from worker.backends.base import Handle
from worker.backends.docker.container.config import container_name
from worker.backends.docker.engine.client import CONFLICT, Engine, EngineError, EngineRefused
from worker.runner.commands import recorded, signal_recorded
from worker.runner.streams import ExecRefused, ExecRequest, SocketStream

_HEADER = struct.Struct("!BxxxI")
_STATUS_SECONDS = 5.0
_STATUS_PAUSE_SECONDS = 0.05
_HANGUP_SECONDS = 1.0
_UNKNOWN_CODE = 126
_CONNECTED = b"connected"

# With Python, which nearly every image for machine learning has; else with bash.
_CONNECT = """
if command -v python3 >/dev/null 2>&1; then exec python3 -S -c "$1" "$0"; fi
if command -v bash >/dev/null 2>&1; then exec bash -c "$2" "$0"; fi
echo "The image has neither python3 nor bash; connecting to ports requires one of them." >&2
exit 1
"""
_CONNECT_PYTHON = """
import os, socket, sys, threading
try:
    s = socket.create_connection(("localhost", int(sys.argv[1])), 30)
except OSError:
    sys.exit(1)
s.settimeout(None)
os.write(2, b"connected")
def send():
    while data := os.read(0, 65536):
        s.sendall(data)
    s.shutdown(socket.SHUT_WR)
threading.Thread(target=send, daemon=True).start()
while data := s.recv(65536):
    view = memoryview(data)
    while view:
        view = view[os.write(1, view):]
"""
# Not with cat: that of BusyBox passes data from a socket to a pipe within the kernel, where some of it is lost.
_CONNECT_BASH = """
exec 3<>"/dev/tcp/localhost/$0" || exit 1
printf connected >&2
dd bs=65536 <&0 >&3 2>/dev/null &
dd bs=65536 <&3 2>/dev/null
"""


def run_in_container(engine: Engine, handle: Handle, request: ExecRequest) -> "ContainerStream":
    """Start a command in a job's container. Raises `ExecRefused`: the engine cannot start it."""
    pid_file = f"session-{request.id}"
    terminal = request.terminal
    try:
        made = engine.call(
            lambda api: api.exec_create(
                container_name(handle["name"]),
                recorded(request, f"{base.CONTROL}/{pid_file}"),
                stdin=True,
                tty=terminal is not None,
                environment={"TERM": terminal.kind} if terminal else None,
            )
        )
        opened = engine.call(lambda api: api.exec_start(made["Id"], tty=terminal is not None, socket=True))
    except EngineError as error:
        gone = isinstance(error, EngineRefused) and error.status == CONFLICT
        raise ExecRefused(
            "The job has just ended." if gone else f"The engine could not start the command: {error}"
        ) from error
    stream = ContainerStream(
        engine, handle, made["Id"], opened, Path(handle["control"]) / pid_file, framed=terminal is None
    )
    if terminal:
        stream.resize(terminal.rows, terminal.columns)
    return stream


def connect_to_container(engine: Engine, handle: Handle, port: int, session_id: str) -> "ContainerStream":
    """Connect to a port in a job's container.

    Raises `ExecRefused`: nothing listens there, or the image has no program that can connect.
    """
    command = ("/bin/sh", "-c", _CONNECT, str(port), _CONNECT_PYTHON, _CONNECT_BASH)
    stream = run_in_container(engine, handle, ExecRequest(session_id, command))
    number, data = next(stream.outputs(), (STDOUT, b""))
    if (number, data) == (STDERR, _CONNECTED):
        return stream
    stream.close()
    text = data.decode(errors="replace").strip()
    raise ExecRefused(text if text.startswith("The image") else f"Nothing in the job listens on port {port}.")


def _run_detached(engine: Engine, container: str, command: Sequence[str]) -> None:
    """Start a command in a container without a connection to it.

    The job may suspend the command, and the image decides what its programs do. So nobody waits for its end, and the
    engine throws its output away: a command that prints without end would fill the worker's memory.
    """
    made = engine.call(lambda api: api.exec_create(container, list(command), stdout=False, stderr=False))
    engine.call(lambda api: api.exec_start(made["Id"], detach=True))


class ContainerStream(SocketStream):
    """A command in a container."""

    def __init__(
        self,
        engine: Engine,
        handle: Handle,
        exec_id: str,
        opened: Any,  # noqa: ANN401 - the SDK names no type
        pid_file: Path,  # file with the command's pid in the container; the job can write it, too
        *,
        framed: bool,
    ) -> None:
        super().__init__(getattr(opened, "_sock", opened))
        self._engine = engine
        self._handle = handle
        self._exec_id = exec_id
        self._opened = opened
        # Not the socket: the start of the output may have been read with the head of the engine's response.
        self._reader: io.BufferedReader = opened._response.raw._fp.fp  # noqa: SLF001 - the SDK has no other way
        self._pid_file = pid_file
        self._framed = framed
        self._closed = threading.Event()

    def outputs(self) -> Iterator[tuple[int, bytes]]:
        with contextlib.suppress(OSError):
            if not self._framed:
                while data := self._reader.read1(CHUNK_BYTES):
                    yield STDOUT, data
                return
            while len(head := self._reader.read(_HEADER.size)) == _HEADER.size:
                stream, length = _HEADER.unpack(head)
                while length > 0 and (data := self._reader.read1(min(length, CHUNK_BYTES))):
                    length -= len(data)
                    yield stream, data

    def end_input(self) -> None:
        """See `JobStream.end_input`; in a terminal, Ctrl-D."""
        if self._framed:
            super().end_input()
        else:
            self.write(b"\x04")

    def resize(self, rows: int, columns: int) -> None:
        if not self._framed:
            with contextlib.suppress(EngineError):
                self._engine.call(lambda api: api.exec_resize(self._exec_id, rows, columns))

    def send_signal(self, name: str) -> None:
        command = signal_recorded(self._pid_file.parent, self._pid_file.name, name)
        if command is None or not self._status().get("Running"):
            return
        with contextlib.suppress(EngineError):
            _run_detached(self._engine, container_name(self._handle["name"]), command)

    def exit_code(self) -> int:
        code = self._wait_for_end(_STATUS_SECONDS)
        return _UNKNOWN_CODE if code is None else code

    def close(self) -> None:
        if self._closed.is_set():
            return
        self._closed.set()
        self.send_signal("HUP")
        if self._wait_for_end(_HANGUP_SECONDS) is None:
            self.send_signal("KILL")
        with contextlib.suppress(OSError):
            self._pid_file.unlink(missing_ok=True)
        super().close()

    def __del__(self) -> None:
        """Do nothing: what the SDK opened closes the connection when it is collected."""

    def _wait_for_end(self, seconds: float) -> int | None:
        """Return the exit code; None: there is none within this time."""
        until = time.monotonic() + seconds
        while True:
            status = self._status()
            code = status.get("ExitCode")
            if code is not None and not status.get("Running"):
                return int(code)
            if time.monotonic() >= until:
                return None
            time.sleep(_STATUS_PAUSE_SECONDS)

    def _status(self) -> dict[str, Any]:
        try:
            status: dict[str, Any] = self._engine.call(lambda api: api.exec_inspect(self._exec_id))
        except EngineError:  # its container is gone, or the engine is
            return {}
        return status
