import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from functools import cache
from pathlib import Path

from core.errors import TensorBoardUnavailable
from core.formatting import GIB
from core.settings.worker import ProcessSettings
from core.system.bubblewrap_command import PATH, START_SECONDS, begin_command, bind_system, run_check
from core.system.untrusted_folders import OPEN_FOLDER

_PROGRAM = Path(__file__).with_name("board_program.py")
_PROGRAM_INSIDE = "/run/board_program.py"
_RUNS = "/runs"
_ENVIRONMENT = {"PATH": PATH, "HOME": "/nonexistent", "LC_ALL": "C.UTF-8", "OPENBLAS_NUM_THREADS": "1"}
_HIDDEN = ("/etc/ssl", "/etc/pki")  # folders that other sandboxes need, and that have private keys which root may read
_MAX_PROBLEM = 300
_MEMORY_BYTES = 2 * GIB  # it ends itself above that


@cache
def sandbox_problem() -> str | None:
    """Return the reason that the sandbox does not work here; None if it works."""
    return run_check([*_sandbox_command({}), "/usr/bin/env", "true"])


class BoardProcess:
    """A process that ends with this one: the kernel then closes the socket over which it gets its connections.

    Start it in the thread of the event loop: bubblewrap also ends with the thread that started it. `folders`: the only
    folders that it reads, by the name of the run.
    """

    def __init__(self, folders: Mapping[str, Path], prefix: str, settings: ProcessSettings) -> None:
        self._control, theirs = socket.socketpair()
        self._control.settimeout(0)
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `close`
        sandboxed = settings.sandbox != "off" and sandbox_problem() is None
        with ExitStack() as opened:
            opened.enter_context(theirs)
            passed = [theirs.fileno()]
            before: list[str] = []
            try:
                if sandboxed:
                    before, program, flag, logdir = _sandbox_command(folders), _PROGRAM_INSIDE, "logdir", _RUNS
                else:
                    program, flag, logdir = str(_PROGRAM), "logdir_spec", ""
                    for name, folder in folders.items():
                        passed.append(os.open(folder, OPEN_FOLDER))
                        opened.callback(os.close, passed[-1])
                        logdir += f"{',' if logdir else ''}{name}:/proc/self/fd/{passed[-1]}"
                command = [*before, sys.executable, "-I", program, str(theirs.fileno()), flag, logdir, prefix]
                self._process = subprocess.Popen(  # noqa: S603 - words of ours
                    [*command, str(_MEMORY_BYTES)],
                    cwd="/",
                    env=_ENVIRONMENT,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=self._errors,
                    pass_fds=passed,
                    start_new_session=True,
                )
            except OSError as error:
                self._control.close()
                self._errors.close()
                reason = os.strerror(error.errno or 0)
                raise TensorBoardUnavailable(f"TensorBoard could not be started: {reason}.") from error

    @property
    def pid(self) -> int:
        return self._process.pid

    def connect(self) -> socket.socket:
        """Return a new connection to it. Raises `OSError`: it has ended, or takes no connections."""
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                socket.send_fds(self._control, [b"c"], [theirs.fileno()])
        except OSError:
            ours.close()
            raise
        return ours

    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def problem(self) -> str:
        """Return the last line that it wrote before it ended."""
        self._errors.seek(max(0, self._errors.seek(0, os.SEEK_END) - 4 * _MAX_PROBLEM))
        lines = self._errors.read().decode(errors="replace").split("\n")
        return next((line for line in reversed(lines) if line.strip()), "")[:_MAX_PROBLEM]

    def close(self) -> None:
        self._control.close()
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(START_SECONDS)
        self._errors.close()


def _sandbox_command(folders: Mapping[str, Path]) -> list[str]:
    command = [*begin_command(becomes_other_user=False), "--unshare-net", "--die-with-parent"]
    command += bind_system((sys.prefix,))
    command += [word for path in _HIDDEN if Path(path).is_dir() for word in ("--tmpfs", path)]
    command += ["--perms", "0755", "--dir", "/run", "--ro-bind", str(_PROGRAM), _PROGRAM_INSIDE, "--dev", "/dev"]
    command += ["--perms", "0755", "--dir", _RUNS]
    command += [word for name, folder in folders.items() for word in ("--ro-bind", str(folder), f"{_RUNS}/{name}")]
    return [*command, "--remount-ro", "/dev", "--remount-ro", "/", "--"]
