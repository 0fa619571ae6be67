"""Slurm's commands, as an ordinary user runs them."""

import os
import pwd
import re
import shlex
import subprocess
import tempfile
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

from core.settings.slurm import SlurmSettings

_SECONDS = 90.0  # longer than Slurm's own MessageTimeout; commands try again themselves
_DROPPED = ("GRADIENT_", "SACCT_", "SCANCEL_", "SQUEUE_", "SLURM_TIME_FORMAT", "LC_ALL")
"""Beginnings of variables that would change what the commands print, or that are none of Slurm's business."""
_SUBMITTED = ("HOME", "LD_LIBRARY_PATH", "LOGNAME", "PATH", "SBATCH_", "SHELL", "SLURM_", "TERM", "USER")
"""Beginnings of variables that sbatch gets, and a job's batch script with it."""


class SlurmError(Exception):
    """A command of Slurm failed; its text is what the command printed.

    `unanswered`: the controller did not answer, so it is not known whether it did what was asked.
    """

    def __init__(self, text: str, *, unanswered: bool) -> None:
        super().__init__(text)
        self.unanswered = unanswered


_UNANSWERED = re.compile(
    "Unable to contact slurm controller|Socket timed out|Zero Bytes were transmitted|Connection (refused|reset)"
    "|Transport endpoint|Unexpected message received|temporarily unable|in standby mode"
    "|Message (send|receive) failure|Slurm backup controller"
)
_SSH_OPTIONS = (
    "BatchMode=yes StrictHostKeyChecking=yes ControlMaster=auto ControlPath=~/.ssh/gradient-%C ControlPersist=10m "
    "ConnectTimeout=15 ServerAliveInterval=15"
)
"""One connection for all commands, to a host whose key is known."""
_SSH_FAILED = 255


class Commands:
    def __init__(self, settings: SlurmSettings) -> None:
        self._bin, self._host = settings.bin, settings.ssh

    @cached_property
    def user(self) -> str:
        """The name of this user on the cluster. Raises `SlurmError`."""
        return pwd.getpwuid(os.getuid()).pw_name if self._host is None else self._run(["id", "-un"]).strip()

    def path(self, program: str) -> str:
        return program if self._bin is None else str(self._bin / program)

    def environment(self, program: str = "") -> dict[str, str]:
        env = {name: value for name, value in os.environ.items() if not name.startswith(_DROPPED)}
        if program == "sbatch":  # passes its own on
            env = {name: value for name, value in env.items() if name.startswith(_SUBMITTED)}
        return env | {"LC_ALL": "C"}

    def on_login_node(self, command: Sequence[str], *options: str) -> list[str]:
        """Return a command of this host that runs this one there; `options`: those of ssh, if it takes that."""
        if self._host is None:
            return list(command)
        return [
            "ssh",
            *(f"-o{option}" for option in _SSH_OPTIONS.split()),
            *options,
            "--",
            self._host,
            shlex.join(["env", "LC_ALL=C", *command]),
        ]

    def run(self, program: str, *arguments: str) -> str:
        """Return what a command prints. Raises `SlurmError`."""
        return self._run([self.path(program), *arguments])

    def _run(self, command: list[str]) -> str:
        program, command = Path(command[0]).name, self.on_login_node(command)
        # Not by a pipe: the connection that ssh keeps may hold it open.
        with tempfile.TemporaryFile() as errors:
            try:
                done = subprocess.run(  # noqa: S603 - the cluster's own commands
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    text=True,
                    errors="replace",
                    timeout=_SECONDS,
                    env=self.environment(program),
                    check=False,
                )
            except subprocess.TimeoutExpired as error:
                raise SlurmError(f"{program} did not answer within {_SECONDS:.0f} seconds", unanswered=True) from error
            except OSError as error:
                raise SlurmError(f"{command[0]}: {error.strerror}", unanswered=False) from error
            errors.seek(0)
            printed = errors.read().decode(errors="replace")
        if done.returncode:
            lost = done.returncode < 0 or (self._host is not None and done.returncode == _SSH_FAILED)
            message = _clean(printed.splitlines()) or f"{program} ended with code {done.returncode}"
            raise SlurmError(message, unanswered=lost or _UNANSWERED.search(printed) is not None)
        return done.stdout


def _clean(lines: Sequence[str]) -> str:
    """Return what a command printed, without the words before each line."""
    errors = (line.partition("error: ")[2] or line for line in lines if line.strip())
    return "; ".join(dict.fromkeys(line.strip() for line in errors))[:1000]
