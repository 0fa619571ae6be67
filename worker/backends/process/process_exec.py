"""Commands in jobs that run as processes of this host, and connections to their ports."""

import fcntl
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import psutil

from core.jobs.exec.channel import CHUNK_BYTES, STDERR, STDOUT
from core.system.processes import read_environment
from worker.backends.job_exec import ExecRefused, ExecRequest
from worker.backends.job_processes import GONE, JobProcesses
from worker.backends.process.sandbox_processes import SandboxProcesses, is_sandbox
from worker.sandbox import system_calls

_ENTER_JOB = Path(__file__).parents[2] / "sandbox" / "enter_job.py"
_START_SECONDS = 30.0
_WAIT_SECONDS = 0.2
_HANGUP_SECONDS = 1.0
_SIGNALLED = 128


def run_in_processes(members: JobProcesses, request: ExecRequest, join: list[str]) -> "ProcessStream":
    """Start a command among the processes of a job.

    `join`: words before a command that start it in the job's control group, if it has one. Raises `ExecRefused`: it
    cannot be started.
    """
    if members.leader is None or not members.leader_alive():
        raise ExecRefused("The job has no process to enter: it is starting or has just ended.")
    sandboxed = isinstance(members, SandboxProcesses)
    with ExitStack() as stack:
        file, process = _prepare(members, members.leader, request, stack)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        stack.enter_context(ours)
        pipe = subprocess.DEVNULL if request.terminal else subprocess.PIPE
        with theirs:
            inherited = [theirs.fileno(), file, *([process] if process >= 0 else [])]
            child = subprocess.Popen(  # noqa: S603 - running the user's command is what this is for
                [*join, sys.executable, "-I", "-S", str(_ENTER_JOB), *map(str, inherited[:2]), str(process)],
                cwd="/",
                env={},
                stdin=pipe,
                stdout=pipe,
                stderr=pipe,
                bufsize=0,
                pass_fds=inherited,
                start_new_session=sandboxed,
            )
        try:
            return ProcessStream(child, *_read_reports(ours))
        except BaseException:
            child.kill()
            child.wait()
            raise


def _describe(leader: psutil.Process, request: ExecRequest, *, sandboxed: bool) -> dict[str, object]:
    """Build the request to `enter_job.py`: the wrapper's own user, variables, folder and CPUs."""
    uid, gid = leader.uids().real, leader.gids().real
    if sandboxed and uid == 0:  # it is still becoming the job's user
        raise ExecRefused("The job is starting. Try again.")
    terminal = request.terminal
    return {
        "command": request.command,
        "env": read_environment(leader.pid) | ({"TERM": terminal.kind} if terminal else {}),
        "folder": leader.cwd(),
        "cpus": sorted(os.sched_getaffinity(leader.pid)),
        "user": (uid, gid) if os.geteuid() == 0 and uid != 0 else None,
        "terminal": (terminal.rows, terminal.columns) if terminal else None,
        "filter": system_calls.make_filter().hex() if sandboxed else None,
    }


def _prepare(members: JobProcesses, leader: int, request: ExecRequest, stack: ExitStack) -> tuple[int, int]:
    """Return the descriptors of a file with the request and of the sandbox's first process; -1: there is none."""
    sandbox = members if isinstance(members, SandboxProcesses) else None
    try:
        message = _describe(psutil.Process(leader), request, sandboxed=sandbox is not None)
        process = _open_sandbox(sandbox, stack) if sandbox is not None else -1
    except (*GONE, OSError) as error:
        raise ExecRefused("The job has just ended.") from error
    file = stack.enter_context(os.fdopen(os.memfd_create("request"), "w+b"))
    file.write(json.dumps(message).encode())
    file.seek(0)
    return file.fileno(), process


def _open_sandbox(members: SandboxProcesses, stack: ExitStack) -> int:
    """Open the sandbox's first process: the folder stays that process's own, even if the pid is used again."""
    descriptor = os.open(f"/proc/{members.first}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    stack.callback(os.close, descriptor)
    if not is_sandbox(members.first, members.job_id, members.attempt):
        raise ExecRefused("The job has just ended.")
    return descriptor


def _read_reports(reports: socket.socket) -> tuple[int, int | None]:
    """Return the command's pid and its terminal."""
    reports.settimeout(_START_SECONDS)
    pid, terminal = 0, None
    while True:
        try:
            text, descriptors, _, _ = socket.recv_fds(reports, 2000, 1)
        except TimeoutError:
            raise ExecRefused(f"The job could not be entered within {_START_SECONDS:.0f} seconds.") from None
        kind, _, detail = text.decode(errors="replace").partition(" ")
        if kind == "pid":
            pid = int(detail)
        elif kind == "terminal":
            terminal = descriptors[0]
        elif kind == "error":
            raise ExecRefused(f"The job could not be entered: {detail}.")
        else:
            return pid, terminal


class ProcessStream:
    """A command in a job of this host; see `JobStream`.

    Args:
        child: The process that was started: the command, or the process that waits for it.
        terminal: The master side of its terminal; None: it has pipes.
    """

    def __init__(self, child: "subprocess.Popen[bytes]", pid: int, terminal: int | None) -> None:
        self._child = child
        self._pid = pid
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
                os.killpg(self._pid, getattr(signal, f"SIG{name}"))

    def exit_code(self) -> int:
        code = self._child.wait()
        return code if code >= 0 else _SIGNALLED - code

    def close(self) -> None:
        if self._closed.is_set():
            return
        self._closed.set()
        self.send_signal("HUP")
        try:
            self._child.wait(_HANGUP_SECONDS)
        except subprocess.TimeoutExpired:
            self.send_signal("KILL")
            self._child.wait()

    def __del__(self) -> None:
        """Close the descriptors, once no thread uses them any more."""
        if self._terminal is not None:
            os.close(self._terminal)
        for pipe in (self._child.stdin, self._child.stdout, self._child.stderr):
            if pipe is not None:
                pipe.close()


def connect_to_processes(members: JobProcesses, port: int) -> "SocketStream":
    """Connect to a port that a process of the job listens on; the other ports of this host are none of its.

    Raises `ExecRefused`: none listens there.
    """
    for process in members.all():
        with suppress(*GONE):
            for connection in process.net_connections("tcp"):
                if connection.status == psutil.CONN_LISTEN and connection.laddr.port == port:
                    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(connection.laddr.ip, connection.laddr.ip)  # noqa: S104 - compared, not bound
                    try:
                        return SocketStream(socket.create_connection((host, port), _START_SECONDS))
                    except OSError as error:
                        raise ExecRefused(f"Port {port} of the job: {error.strerror or error}.") from error
    raise ExecRefused(f"Nothing in the job listens on port {port}.")


class SocketStream:
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

    def resize(self, rows: int, columns: int) -> None:
        """Do nothing: there is no terminal."""

    def send_signal(self, name: str) -> None:
        """Do nothing: there is no command."""

    def exit_code(self) -> int:
        return 0

    def close(self) -> None:
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
