"""Runs our own programs on what users bring (uv, git) where their jobs run: in a sandbox, with a network of its own.

Where jobs have no sandbox, such a program runs as the worker's user, as they do.
"""

import math
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import wait
from pathlib import Path

from core.formatting import MIB
from core.settings import Settings
from core.system.bubblewrap_command import PATH
from core.system.trees import remove_tree
from worker.backends.base import LaunchError
from worker.backends.docker.container.users import chown_trees, project_user
from worker.backends.network_limits import FirewallUnavailable
from worker.backends.package_indexes import Address, configuration_folders, pass_on
from worker.backends.process.job_sandbox import (
    READY,
    in_memory,
    open_copied,
    readable_paths,
    reason_without_sandbox,
    sandbox_command,
)
from worker.backends.process.network.job_network import HOST_NETWORK, make_network, reason_without_network
from worker.backends.process.sandbox_start import SandboxStart, finish_start

Check = Callable[[], None]  # called about twice a second; an exception that it raises ends the program
OnLine = Callable[[str], None]  # called with each line that the program prints

TEMPORARY = "/tmp"  # noqa: S108 - a mount point
_START_SECONDS = 30.0
_CHECK_SECONDS = 0.5
_MAX_OUTPUT_BYTES = 256 * 1024
_BLOCK_BYTES = 64 * 1024
_NOBODY = 65534, 65534
# The worker's end of the socket is closed when the worker ends, and all of the sandbox ends with it.
_SHELL = (
    f"umask 022; ulimit -c 0; printf '{READY.decode().rstrip()}\\n' >&2; read -r _ <&2 || exit; "
    '{ read -r _ <&2; kill -KILL -1; } >/dev/null & cd "$1" && shift && exec "$@" 2>&1'
)


class TooLong(Exception):
    def __init__(self, seconds: float, output: str) -> None:
        super().__init__(f"it was not done within {seconds:g} seconds")
        self.output = output


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    words: Sequence[str]
    folder: Path  # the folder that it starts in, in one of those that it may write
    folders: Sequence[tuple[Path, str]]
    temporary: Path  # a folder that is made for its temporary files, which are its home, too, and deleted
    project_id: str | None  # the project, whose user it runs as; None: what it works on is the administrator's
    readable: Sequence[str] = ()  # more of this host that is seen read-only, at the same paths
    env: Mapping[str, str] = field(default_factory=dict)
    given: bytes = b""
    seconds: float
    reaches: Iterable[Address] = ()


class Isolation:
    """The isolation of this host's jobs, for programs of ours. `shared`: see `Backend.shared`."""

    def __init__(self, settings: Settings, shared: Callable[[], bool]) -> None:
        self._settings = settings
        self.problem = reason_without_sandbox(settings)  # reason that there is no sandbox; None if there is
        self._network = HOST_NETWORK if self.problem is not None else make_network(settings, shared)

    @property
    def own_network(self) -> bool:
        """Return whether programs have a network of their own, which keeps them from this host."""
        return self._network is not HOST_NETWORK

    def own(self, project_id: str | None, *folders: Path) -> None:
        """Give folders, with everything in them, to the user that programs of a project run as."""
        if os.geteuid() == 0 and self.problem is None:
            chown_trees(self._user(project_id), *folders)

    def _user(self, project_id: str | None) -> tuple[int, int]:
        return _NOBODY if project_id is None else project_user(self._settings.docker, project_id)

    def run(self, program: Program, check: Check, on_line: OnLine = lambda _: None) -> tuple[int, str]:
        """Run a program to its end; return its exit code, and the end of its output."""
        process = self._settings.process
        if process.sandbox == "require" and self.problem is not None:
            raise LaunchError("launch_failed", f"GRADIENT_PROCESS__SANDBOX=require: {self.problem}")
        if process.network == "require" and not self.own_network:
            why = self.problem or reason_without_network(self._settings)
            raise LaunchError("launch_failed", f"GRADIENT_PROCESS__NETWORK=require: {why}")
        with ExitStack() as stack:
            given = stack.enter_context(in_memory(program.given)).fileno()
            if self.problem is not None:
                child = _start(program.words, program.env, given, subprocess.STDOUT, folder=program.folder)
                stack.callback(_end_session, child)
            else:
                try:
                    child = self._start_sandbox(program, given, stack)
                except (OSError, FirewallUnavailable) as error:
                    raise LaunchError("launch_failed", f"its sandbox could not be made: {error}") from error
            output = _follow(child, program.seconds, check, on_line)
            return child.wait(), output

    def _start_sandbox(self, program: Program, given: int, stack: ExitStack) -> "subprocess.Popen[bytes]":
        settings, uid = self._settings, -1
        remove_tree(program.temporary)
        program.temporary.mkdir(mode=0o700)
        stack.callback(remove_tree, program.temporary)
        if os.geteuid() == 0:
            uid = self._user(program.project_id)[0]
        self.own(program.project_id, program.temporary)
        copied = stack.enter_context(open_copied(uid, self._network.resolvers()))
        command = sandbox_command(
            settings,
            uid,
            copied,
            self._network.unshare,
            readable=[*readable_paths(settings, None), *configuration_folders(), *program.readable],
            folders=[(program.temporary, TEMPORARY), *program.folders],
            shared_memory_bytes=max(1, settings.docker.shm_mb) * MIB,
        )
        folder = next(
            Path(target, program.folder.relative_to(source))
            for source, target in program.folders
            if program.folder.is_relative_to(source)
        )
        command += ["-c", _SHELL, "sh", str(folder), *program.words]
        env = {"HOME": TEMPORARY, **program.env, **self._network.variables}
        ours, theirs = socket.socketpair()
        stack.enter_context(ours)
        with theirs:
            channel = ours.dup()
            try:
                child = self._network.start(partial(_start, command, env, given, theirs.fileno(), *copied.values()))
            except BaseException:
                channel.close()
                raise
        stack.callback(_end_session, child)
        finish_start(SandboxStart(child, channel), None, _START_SECONDS, partial(self._connect, program, stack))
        return child

    def _connect(self, program: Program, stack: ExitStack, first: int) -> None:
        """Complete the network of a sandbox, which will be ended with all in it."""
        process = os.pidfd_open(first)
        stack.callback(_end_sandbox, process)
        if self.own_network:
            self._network.attach(first)
            for address in dict.fromkeys(program.reaches):
                forward = pass_on(first, address)
                forward.wanted_at = math.inf
                stack.callback(forward.close)


def _start(
    words: Sequence[str], env: Mapping[str, str], given: int, errors: int, *passed: int, folder: Path = Path("/")
) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(  # noqa: S603 - the callers' commands
        words,
        cwd=folder,
        env={"PATH": PATH, "LC_ALL": "C.UTF-8", **env},
        stdin=given,
        stdout=subprocess.PIPE,
        stderr=errors,
        pass_fds=passed,
        start_new_session=True,
    )


def _end_session(child: "subprocess.Popen[bytes]") -> None:
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()
    if child.stdout is not None:
        child.stdout.close()


def _end_sandbox(process: int) -> None:
    """End a sandbox by its first process: the kernel ends all others before that one is gone."""
    with suppress(ProcessLookupError):
        signal.pidfd_send_signal(process, signal.SIGKILL)
    wait([process], _START_SECONDS)
    os.close(process)


def _follow(child: "subprocess.Popen[bytes]", seconds: float, check: Check, on_line: OnLine) -> str:
    """Read the output until the program ends; only the last part is kept."""
    assert child.stdout is not None  # noqa: S101 - for mypy: it is a pipe
    pipe, until, data, line = child.stdout.fileno(), time.monotonic() + seconds, b"", b""
    os.set_blocking(pipe, False)
    ended = os.pidfd_open(child.pid)
    try:
        while True:
            check()
            if time.monotonic() > until:
                raise TooLong(seconds, data.decode(errors="replace"))
            ready = wait([pipe, ended], _CHECK_SECONDS)
            block = b""
            with suppress(BlockingIOError):  # something that it has started may have its output open
                block = os.read(pipe, _BLOCK_BYTES) if ready else b""
            data = (data + block)[-_MAX_OUTPUT_BYTES:]
            *lines, line = (line[-_BLOCK_BYTES:] + block).split(b"\n")
            for one in lines:
                on_line(one.decode(errors="replace").strip())
            if ended in ready and not block:
                return data.decode(errors="replace")
            if pipe in ready and not block:  # closed: only the end is waited for
                wait([ended], _CHECK_SECONDS)
    finally:
        os.close(ended)
