"""Runs our own programs on users' input, isolated from everything else.

Such a program sees the system's programs read-only, one writable folder, and no network except one tunnel. It has no
capabilities, and none of the worker's files, sockets and environment. bubblewrap creates the sandbox; it works as root,
and as any user allowed to create namespaces. Where it does not work, the program runs as the worker's user, with the
same limits, the same empty environment and the same tunnel.
"""

import errno
import os
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from multiprocessing.connection import wait
from pathlib import Path
from typing import NamedTuple

from core.system.bubblewrap_command import (
    PATH,
    START_SECONDS,
    begin_command,
    bind_system,
    run_check,
)
from worker.sandbox.tunnel import Tunnel

FOLDER = "/workspace"
"""Path of the folder inside the sandbox."""

_INIT = Path(__file__).with_name("program_sandbox_init.py")
_INIT_INSIDE = "/run/program_sandbox_init.py"
_TUNNEL_PORT = 1080
"""Port of the tunnel inside a sandbox that has one."""
_NOBODY = 65534
_CHECK_SECONDS = 0.5
_MEASURE_SHARE = 20
"""The folder is measured again after this multiple of the time that measuring took: a large one less often."""
_MAX_OUTPUT_BYTES = 64 * 1024


class SandboxError(Exception):
    """The program was ended for exceeding a limit, or could not be started."""


class FolderFull(SandboxError):
    """The program wrote more than its folder may hold."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Resource limits of a program.

    Attributes:
        seconds: Total run time.
        memory_bytes: Memory of each of its processes.
        folder_bytes: Disk space of its folder.
        folder_files: Files and folders in its folder.
    """

    seconds: float
    memory_bytes: int
    folder_bytes: int
    folder_files: int


class SandboxResult(NamedTuple):
    """Exit code of a finished program, and the end of its output."""

    code: int
    output: str


class Sandbox:
    """Runs programs in a sandbox.

    Args:
        mode: `auto`, `require` or `off`, as in the setting `worker.sandbox`.
    """

    def __init__(self, mode: str) -> None:
        self.problem = "GRADIENT_WORKER__SANDBOX=off" if mode == "off" else unavailable()
        """Reason that the sandbox does not work here; None if it works."""
        self._required = mode == "require"

    def run(
        self,
        command: Sequence[str],
        folder: Path,
        limits: Limits,
        *,
        env: Mapping[str, str] | None = None,
        tunnel: Tunnel | None = None,
        check: Callable[[], None] = lambda: None,
    ) -> SandboxResult:
        """Run a program in a folder, and kill all processes that it leaves.

        Args:
            command: The program's absolute path, and its arguments. Every user of this machine can see them.
            folder: The only folder that it may write; its files belong to the worker's user again at the end.
            limits: The program is ended when it exceeds one.
            env: Its environment, to which PATH and, if there is a tunnel, ALL_PROXY are added.
            tunnel: Its only network; None: no network (without a sandbox, the host's).
            check: Called periodically; an exception it raises ends the program.

        Raises:
            SandboxError: A limit was exceeded, or the program could not be started.
        """
        if self.problem and self._required:
            raise SandboxError(f"there is no sandbox, and GRADIENT_WORKER__SANDBOX=require: {self.problem}")
        given = {"PATH": PATH, "HOME": "/nonexistent", "LC_ALL": "C"} | dict(env or {})
        if self.problem:
            return self._run_plain(command, folder, limits, given, tunnel, check)
        return self._run_sandboxed(command, folder, limits, given, tunnel, check)

    def _run_plain(
        self,
        command: Sequence[str],
        folder: Path,
        limits: Limits,
        env: dict[str, str],
        tunnel: Tunnel | None,
        check: Callable[[], None],
    ) -> SandboxResult:
        if tunnel is not None:
            listener = socket.create_server(("127.0.0.1", 0))
            env["ALL_PROXY"] = f"socks5h://127.0.0.1:{listener.getsockname()[1]}"
            tunnel.serve(listener)
        words = [*_init_command(str(_INIT), -1, -1, ".", limits), *command]
        with _start_process(words, env, folder) as process:
            return _wait(process, folder, limits, check)

    def _run_sandboxed(
        self,
        command: Sequence[str],
        folder: Path,
        limits: Limits,
        env: dict[str, str],
        tunnel: Tunnel | None,
        check: Callable[[], None],
    ) -> SandboxResult:
        ours, theirs = socket.socketpair()
        out = theirs.fileno() if tunnel is not None else -1
        uid = _NOBODY if os.geteuid() == 0 else -1
        if tunnel is not None:
            env["ALL_PROXY"] = f"socks5h://127.0.0.1:{_TUNNEL_PORT}"
        words = [*_bubblewrap_command(folder), *_init_command(_INIT_INSIDE, out, uid, FOLDER, limits), *command]
        _chown_tree(folder, uid)
        try:
            with ours, _start_process(words, env, folder, (theirs.fileno(),)) as process:
                theirs.close()
                if tunnel is not None:
                    tunnel.serve(_receive_listener(ours, process))
                return _wait(process, folder, limits, check)
        finally:
            theirs.close()
            _chown_tree(folder, os.geteuid() if uid >= 0 else -1)


@cache
def unavailable() -> str | None:
    """Return the reason that the sandbox does not work here; None if it works."""
    return run_check([*_bubblewrap_command(None), "/usr/bin/env", "true"])


def _bubblewrap_command(folder: Path | None) -> list[str]:
    """Return the bubblewrap part of a sandboxed command."""
    words = [*begin_command(), "--unshare-net", "--die-with-parent", *bind_system()]
    words += ["--perms", "0755", "--dir", "/run", "--ro-bind", str(_INIT), _INIT_INSIDE]
    # No /proc: git needs none, and the kernel mounts none where parts of the host's are covered, as systemd does.
    words += ["--dev", "/dev"]
    if folder is not None:
        words += ["--bind", str(folder), FOLDER]
    return [*words, "--remount-ro", "/dev", "--remount-ro", "/", "--"]


def _init_command(program: str, out: int, uid: int, folder: str, limits: Limits) -> list[str]:
    """Return the words that start the init program; see `program_sandbox_init.py` for the arguments."""
    most = f"CORE=0,FSIZE={limits.folder_bytes},DATA={limits.memory_bytes},CPU={int(limits.seconds) + 1}"
    numbers = [str(number) for number in (out, _TUNNEL_PORT, uid)]
    return [os.path.realpath(sys.executable), "-I", "-S", program, *numbers, folder, most]


def _start_process(
    words: Sequence[str], env: Mapping[str, str], folder: Path, passed: tuple[int, ...] = ()
) -> "subprocess.Popen[bytes]":
    try:
        return subprocess.Popen(  # noqa: S603 - the callers' commands
            words,
            cwd=folder,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=passed,
            start_new_session=True,
        )
    except OSError as error:
        raise SandboxError(f"it could not be started: {error}") from error


def _receive_listener(ours: socket.socket, process: "subprocess.Popen[bytes]") -> socket.socket:
    """Receive the listening socket that was created inside the sandbox."""
    ours.settimeout(START_SECONDS)
    try:
        _, descriptors, _, _ = socket.recv_fds(ours, 1, 1)
    except OSError:
        descriptors = []
    if descriptors:
        return socket.socket(fileno=descriptors[0])
    _kill(process)
    output = os.read(_output(process), _MAX_OUTPUT_BYTES).decode(errors="replace")
    raise SandboxError(f"it could not be started: {' '.join(output.split())[:300]}")


def _output(process: "subprocess.Popen[bytes]") -> int:
    if process.stdout is None:
        raise SandboxError("it has no output")
    return process.stdout.fileno()


def _wait(process: "subprocess.Popen[bytes]", folder: Path, limits: Limits, check: Callable[[], None]) -> SandboxResult:
    """Read the output until the program ends; only the last part is kept, since the output may be endless."""
    pipe, kept = _output(process), b""
    began = time.monotonic()
    measure_at = began + _CHECK_SECONDS
    try:
        while True:
            check()
            if wait([pipe], _CHECK_SECONDS):
                block = os.read(pipe, _MAX_OUTPUT_BYTES)
                if not block:
                    break
                kept = (kept + block)[-_MAX_OUTPUT_BYTES:]
            now = time.monotonic()
            if now - began > limits.seconds:
                raise SandboxError(f"it was not done within {limits.seconds:g} seconds")
            if now >= measure_at:
                _check_size(folder, limits)
                measure_at = time.monotonic() + _MEASURE_SHARE * (time.monotonic() - now)
        code = process.wait(START_SECONDS)
    finally:
        _kill(process)
        while os.read(pipe, _MAX_OUTPUT_BYTES):  # whatever has it open is being killed
            pass
    _check_size(folder, limits)
    return SandboxResult(code, kept.decode(errors="replace"))


def _kill(process: "subprocess.Popen[bytes]") -> None:
    """Kill the process with its whole session; in a sandbox, everything ends with the first process."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def _check_size(folder: Path, limits: Limits) -> None:
    size = 0
    for number, (_, status) in enumerate(_walk(folder), 1):  # an empty file takes no bytes, but an inode
        if number > limits.folder_files:
            raise SandboxError(f"it is more than {limits.folder_files:,} files and folders, which is the limit")
        size += status.st_blocks * 512
    if size > limits.folder_bytes:
        raise FolderFull(f"it takes more than {limits.folder_bytes:,} bytes of disk")


def _chown_tree(folder: Path, uid: int) -> None:
    """Change the owner of a folder with everything in it, and clear setuid bits; -1: do nothing."""
    if uid < 0:
        return
    for path, status in _walk(folder):
        os.chown(path, uid, uid, follow_symlinks=False)
        if stat.S_ISREG(status.st_mode) and status.st_mode & (stat.S_ISUID | stat.S_ISGID):
            path.chmod(status.st_mode & 0o777)
    os.chown(folder, uid, uid)


def _walk(folder: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Walk everything in a folder without following links; skip what disappears meanwhile."""
    for inner, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = Path(inner, name)
            try:
                yield path, path.lstat()
            except FileNotFoundError:
                continue
            except OSError as error:
                if error.errno != errno.ENAMETOOLONG:
                    raise
                raise SandboxError("a path in it is longer than this system takes") from None
