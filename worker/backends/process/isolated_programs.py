"""Runs our own programs on what users bring (uv, git) where their jobs run: in a sandbox, with a network of its own.

Where jobs have no sandbox, such a program runs as the worker's user, as they do.
"""

import math
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, Self

from core.formatting import MIB
from core.ids import new_id
from core.jobs.spec.job_spec import JobSpec
from core.settings import Settings
from core.system.bubblewrap_command import PATH
from core.system.processes import start_session
from core.system.untrusted_folders import chown_tree, opened_folder, remove_tree
from worker.backends.base import DEFAULT_SHM_BYTES, LaunchError
from worker.backends.docker.container.users import project_user
from worker.backends.network_limits import FirewallUnavailable
from worker.backends.package_indexes import Address, configuration_folders, pass_on
from worker.backends.process.control_groups import JobGroup, control_group_support
from worker.backends.process.job_sandbox import (
    READY,
    in_memory,
    open_copied,
    readable_paths,
    reason_without_sandbox,
    sandbox_command,
)
from worker.backends.process.network.job_network import (
    HOST_NETWORK,
    NO_NETWORK,
    make_network,
    reason_without_network,
)
from worker.backends.process.plain_start import join_words
from worker.backends.process.sandbox_start import finish_start, start_bubblewrap
from worker.sandbox.network_namespace import JobNetwork

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


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a program for an attempt: those of the attempt itself."""

    attempt: str  # its name
    memory_bytes: int | None
    cpus: float | None

    @classmethod
    def of(cls, attempt: str, spec: JobSpec) -> Self:
        return cls(attempt, None if spec.memory_mb is None else spec.memory_mb * MIB, spec.cpus)


class OutOfMemory(Exception):
    """A program took more memory than its job may."""

    def __init__(self, limits: Limits) -> None:
        limit = (limits.memory_bytes or 0) // MIB
        super().__init__(f"it needs more memory than the job's {limit:,} MiB: submit with a larger --memoryMb")


class TooLong(Exception):
    def __init__(self, seconds: float, output: str) -> None:
        super().__init__(f"it took more than {seconds:g} seconds")
        self.output = output


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    words: Sequence[str]
    folder: Path  # the folder that it starts in, in one of those that it may write
    folders: Sequence[tuple[Path, str]]
    # a folder that no program sees, in which one for its temporary files is made, its home, too, and deleted
    beside: Path
    project_id: str | None  # the project, whose user it runs as; None: what it works on is the administrator's
    readable: Sequence[str] = ()  # more of this host that is seen read-only, at the same paths
    env: Mapping[str, str] = field(default_factory=dict)
    given: bytes = b""
    seconds: float
    limits: Limits | None = None
    reaches: Iterable[Address] = ()


class Isolation:
    """The isolation of this host's jobs, for programs of ours. `shared`: see `Backend.shared`."""

    def __init__(self, settings: Settings, shared: Callable[[], bool]) -> None:
        self._settings = settings
        self.problem = reason_without_sandbox(settings)  # reason that there is no sandbox; None if there is
        self._network = make_network(settings, shared) if self.problem is None else lambda: HOST_NETWORK

    @property
    def has_network(self) -> bool:
        """Return whether programs reach more than localhost."""
        return self._network() is not NO_NETWORK

    def explain(self, problem: str) -> str:
        """Add to what is wrong that programs have no network, if so."""
        if self.has_network:
            return problem
        why = reason_without_network(self._settings)
        return (
            f"{problem.rstrip('.')}. Installations and git have no network on the worker's machine: more than one API "
            f"key is valid, and it cannot make separate networks ({why}). They reach only package indexes on the "
            "machine, or configured by IP address. Ask an administrator to change that."
        )

    def own(self, project_id: str | None, folder: Path) -> None:
        """Give a folder, with everything in it, to the user that programs of a project run as."""
        if os.geteuid() == 0 and self.problem is None:
            try:
                chown_tree(folder, *self._user(project_id))
            except OSError as error:
                raise LaunchError("launch_failed", f"a folder's owner cannot be changed: {error}") from error

    def make_folder(self, project_id: str | None, folder: Path) -> None:
        """Make a folder, unless it is there, and give it alone to that user."""
        folder.mkdir(mode=0o700, exist_ok=True)
        if os.geteuid() == 0 and self.problem is None:
            with opened_folder(folder) as opened:
                os.fchown(opened, *self._user(project_id))

    def _user(self, project_id: str | None) -> tuple[int, int]:
        return _NOBODY if project_id is None else project_user(project_id)

    def run(self, program: Program, check: Check, on_line: OnLine = lambda _: None) -> tuple[int, str]:
        """Run a program to its end; return its exit code, and the end of its output."""
        process = self._settings.process
        if process.sandbox == "require" and self.problem is not None:
            raise LaunchError("launch_failed", f"GRADIENT_PROCESS__SANDBOX=require: {self.problem}")
        if process.network == "require" and (why := reason_without_network(self._settings)):
            raise LaunchError("launch_failed", f"GRADIENT_PROCESS__NETWORK=require: {why}")
        with ExitStack() as stack:
            given = stack.enter_context(in_memory(program.given))
            group = self._make_group(program.limits, stack)
            if self.problem is not None:
                child = _start(program.words, program.env, stdin=given, stderr=subprocess.STDOUT, folder=program.folder)
                stack.callback(_end_session, child)
            else:
                try:
                    child = self._start_sandbox(program, given, group, stack)
                except (OSError, FirewallUnavailable) as error:
                    raise LaunchError("launch_failed", f"its sandbox could not be created: {error}") from error
            output = _follow(child, program.seconds, check, on_line)
            code = child.wait()
            if program.limits is not None and group is not None and group.out_of_memory():
                raise OutOfMemory(program.limits)
            return code, output

    def _make_group(self, limits: Limits | None, stack: ExitStack) -> JobGroup | None:
        """Make the attempt's control group, which the attempt itself makes anew; None if it has no limits here."""
        groups = control_group_support(self._settings.process.cgroups)[0]
        if limits is None or groups is None or self.problem is not None:
            return None
        group = groups.of_sandboxes().group(limits.attempt)
        stack.callback(group.remove)  # its OOM count, too
        try:
            group.create(limits.memory_bytes, limits.cpus, self._settings.docker.pids)
        except OSError as error:
            raise LaunchError("launch_failed", f"its control group could not be created: {error}") from error
        return group

    def _start_sandbox(
        self, program: Program, given: int, group: JobGroup | None, stack: ExitStack
    ) -> "subprocess.Popen[bytes]":
        settings = self._settings
        program.beside.mkdir(mode=0o700, exist_ok=True)
        temporary = program.beside / new_id("tmp")
        stack.callback(remove_tree, temporary)
        self.make_folder(program.project_id, temporary)
        uid, network = self._user(program.project_id)[0] if os.geteuid() == 0 else -1, self._network()
        copied = stack.enter_context(open_copied(uid, network.resolvers()))
        command = sandbox_command(
            settings,
            uid,
            copied,
            network.unshare,
            readable=[*readable_paths(settings, None), *configuration_folders(), *program.readable],
            folders=[(temporary, TEMPORARY), *program.folders],
            shared_memory_bytes=DEFAULT_SHM_BYTES,
        )
        folder = next(
            Path(target, program.folder.relative_to(source))
            for source, target in program.folders
            if program.folder.is_relative_to(source)
        )
        joined = group if group is not None and group.joined_at_once else None
        command = [*join_words(joined), *command, "-c", _SHELL, "sh", str(folder), *program.words]
        env = {"HOME": TEMPORARY, **program.env}
        start = start_bubblewrap(partial(_start, command, env, *copied.values(), stdin=given), network)
        stack.enter_context(start.channel.dup())
        stack.callback(_end_session, start.bubblewrap)
        moved = group if joined is None else None
        finish_start(start, moved, _START_SECONDS, partial(_connect, program, network, stack))
        return start.bubblewrap


def run_here(
    command: Sequence[str], env: Mapping[str, str], seconds: float, check: Check, on_line: OnLine = lambda _: None
) -> tuple[int, str]:
    """Run a program on nothing that users bring, as the worker's user, to its end; see `Isolation.run`."""
    child = _start(command, env, stderr=subprocess.STDOUT)
    try:
        output = _follow(child, seconds, check, on_line)
        return child.wait(), output
    finally:
        _end_session(child)


def _connect(program: Program, network: JobNetwork, stack: ExitStack, first: int) -> None:
    """Complete the network of a sandbox, which will be ended with all in it."""
    process = os.pidfd_open(first)
    stack.callback(_end_sandbox, process)
    if network is not HOST_NETWORK:
        network.attach(first)
        for address in dict.fromkeys(program.reaches):
            forward = pass_on(first, address)
            forward.wanted_at = math.inf
            stack.callback(forward.close)


def _start(command: Sequence[str], env: Mapping[str, str], *passed: int, **options: Any) -> "subprocess.Popen[bytes]":  # noqa: ANN401 - those of `start_session`
    return start_session(
        command, {"PATH": PATH, "LC_ALL": "C.UTF-8", **env}, *passed, stdout=subprocess.PIPE, **options
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
            for raw in lines:
                on_line(raw.decode(errors="replace").strip())
            if ended in ready and not block:
                return data.decode(errors="replace")
            if pipe in ready and not block:  # closed: only the end is waited for
                wait([ended], _CHECK_SECONDS)
    finally:
        os.close(ended)
