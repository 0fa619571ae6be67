"""The connections of a worker to the machine of a job, at a port that its runner listens on.

Both sides prove that they know the token of the attempt, which neither sends. What follows is not encrypted: nobody
may be able to read or change the packets of the network between them.
"""

from __future__ import annotations

import hmac
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from core.jobs.exec import channel
from core.jobs.exec.channel import ChannelBroken
from worker.runner.kept_port import KeptPort
from worker.runner.sessions import ENDED, KILLED, LINGER_SECONDS, accept_all, carry, printable
from worker.runner.streams import ExecRefused, ExecRequest, JobStream, SocketStream, relay

PORT = 8474  # of a machine that runs a job, unless something else has it
TOKEN_BYTES = 32
_CONNECT_SECONDS = 10.0
_START_SECONDS = 60.0  # until a command has begun: an engine may be busy
_END_SECONDS = 2.0
_PAUSE_SECONDS = 0.1
_IDLE_SECONDS, _PROBE_SECONDS = 60, 20  # a machine that says nothing more is found by then, and the probes that follow
_MAX_CONNECTIONS = 512
_PORT_FILE = "session_port"
_WORKER, _MACHINE = b"worker", b"machine"


def connect(address: str, port: int, token: bytes, request: Mapping[str, object]) -> socket.socket:
    """Open a session; return the connection that carries it: frames of a command, or the bytes of a port.

    Raises `ExecRefused`: the machine cannot be reached, or refuses.
    """
    with ExitStack() as stack:
        try:
            connection = stack.enter_context(socket.create_connection((address, port), _CONNECT_SECONDS))
            answer = _request(connection, token, request)
        except (OSError, ChannelBroken) as error:
            raise ExecRefused(f"The job's machine does not answer at {address}:{port}: {error}.") from error
        if not answer.get("started"):
            raise ExecRefused(printable(answer.get("refused")))
        stack.pop_all()
    return connection


def _request(connection: socket.socket, token: bytes, request: Mapping[str, object]) -> dict[str, Any]:
    _authenticate(connection, token, _WORKER, _MACHINE)
    connection.sendall(channel.encode_control(request))
    connection.settimeout(_START_SECONDS)
    frame = channel.receive(connection)
    if frame is None:
        raise ChannelBroken("it closed the connection")
    connection.settimeout(None)
    return channel.decode_control(frame[1])


def _authenticate(connection: socket.socket, token: bytes, name: bytes, other: bytes) -> None:
    """Prove knowledge of the token, and demand it. Raises `ChannelBroken`: the other side does not know it."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _IDLE_SECONDS)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _PROBE_SECONDS)
    ours = os.urandom(TOKEN_BYTES)
    connection.sendall(ours)
    theirs = channel.receive_exactly(connection, TOKEN_BYTES) or b""
    connection.sendall(hmac.digest(token, name + ours + theirs, "sha256"))
    proof = channel.receive_exactly(connection, TOKEN_BYTES) or b""
    if not hmac.compare_digest(proof, hmac.digest(token, other + theirs + ours, "sha256")):
        raise ChannelBroken("it does not know the job's token")


class SessionServer:
    """Serves the workers of one job on its machine; usable from any thread.

    Args:
        folder: It keeps the port in a file, for a later server of the same job: workers know it.
        run: Starts a command in the job. Raises `ExecRefused`.
        has_ended: Returns whether the job has ended.
    """

    def __init__(self, folder: Path, run: Callable[[ExecRequest], JobStream], has_ended: Callable[[], bool]) -> None:
        self._folder = folder
        self._run = run
        self._has_ended = has_ended
        self._token = b""
        self._address = ""
        self._lock = threading.Lock()
        self._streams: set[JobStream] = set()
        self._over = threading.Event()
        self._free = threading.BoundedSemaphore(_MAX_CONNECTIONS)

    def open(self, address: str, token: bytes) -> int:
        """Listen, and return the port; 0: that is not possible.

        Any program in the network can connect, those of the job among them. Without the token, which is in no
        program's environment, it gets no further. A job that has all rights on its machine can read the token; it can
        then only enter itself.
        """
        self._address, self._token = address, token
        try:
            kept = KeptPort(self._folder / _PORT_FILE, lambda port: socket.create_server((address, port)), PORT)
        except OSError as error:
            sys.stderr.write(f"no sessions: {address}: {error}\n")
            return 0
        threading.Thread(target=self._serve, args=(kept,), name="sessions", daemon=True).start()
        return kept.number

    def end(self) -> None:
        """End all sessions, because the job has ended."""
        self._over.set()
        with self._lock:
            streams = list(self._streams)
        for stream in streams:  # each in a thread: a command that ignores SIGHUP is waited for
            threading.Thread(target=stream.close, name="session-end", daemon=True).start()

    def _serve(self, kept: KeptPort) -> None:
        accept_all(kept.wait(), self._answer, "session")

    def _answer(self, connection: socket.socket) -> None:
        if not self._free.acquire(blocking=False):
            connection.close()
            return
        try:
            with connection:
                connection.settimeout(_CONNECT_SECONDS)
                _authenticate(connection, self._token, _MACHINE, _WORKER)
                frame = channel.receive(connection)
                connection.settimeout(None)
                if frame is not None:
                    self._carry(connection, channel.decode_control(frame[1]))
        except (OSError, ChannelBroken) as error:
            sys.stderr.write(f"session lost: {error}\n")
        finally:
            self._free.release()

    def _carry(self, connection: socket.socket, request: dict[str, Any]) -> None:
        try:
            opened = self._connect(request["port"]) if "port" in request else None
            stream = SocketStream(opened) if opened is not None else self._run(ExecRequest.of(request))
        except ExecRefused as error:
            connection.sendall(channel.encode_control({"refused": str(error)}))
            return
        with self._lock:
            self._streams.add(stream)
        try:
            if self._over.is_set():  # meanwhile, so that nobody closed it
                stream.close()
            if opened is not None:
                connection.sendall(channel.encode_control({"started": True}))
                with opened:
                    relay(connection, opened)
                return
            feeder = carry(connection, stream, stream.close, lambda: self._find_end(stream))
        finally:
            stream.close()
            with self._lock:
                self._streams.discard(stream)
        feeder.join(LINGER_SECONDS)

    def _connect(self, port: int) -> socket.socket:
        for host in ("localhost", self._address):
            with suppress(OSError):
                return socket.create_connection((host, port), _CONNECT_SECONDS)
        raise ExecRefused(f"Nothing in the job listens on port {port}.")

    def _find_end(self, stream: JobStream) -> dict[str, object]:
        code, until = stream.exit_code(), time.monotonic() + _END_SECONDS
        while code == KILLED and not self._over.is_set() and time.monotonic() < until:  # perhaps by the end of its job
            with suppress(OSError):
                if self._has_ended():
                    self._over.set()
            self._over.wait(_PAUSE_SECONDS)
        return {"ended": ENDED} if self._over.is_set() else {"exit": code}
