"""Slurm's commands, as an ordinary user runs them."""

import os
import subprocess
from collections.abc import Sequence

from core.settings.slurm import SlurmSettings

_SECONDS = 90.0  # longer than Slurm's own MessageTimeout; commands try again themselves
_DROPPED = ("GRADIENT_", "SACCT_", "SCANCEL_", "SQUEUE_", "SLURM_TIME_FORMAT", "LC_ALL")
"""Beginnings of variables that would change what the commands print, or that are none of Slurm's business."""


class SlurmError(Exception):
    """A command of Slurm failed; its text is what the command said.

    `unanswered`: the controller did not answer, so it is not known whether it did what was asked.
    """

    def __init__(self, text: str, *, unanswered: bool) -> None:
        super().__init__(text)
        self.unanswered = unanswered


_UNANSWERED = (
    "Unable to contact slurm controller",
    "Socket timed out",
    "Zero Bytes were transmitted",
    "Connection refused",
    "Connection reset",
    "Transport endpoint",
    "Unexpected message received",
    "temporarily unable",
    "in standby mode",
    "Message send failure",
    "Message receive failure",
    "Slurm backup controller",
)


class Commands:
    def __init__(self, settings: SlurmSettings) -> None:
        self._bin = settings.bin

    def path(self, program: str) -> str:
        return program if self._bin is None else str(self._bin / program)

    def run(self, program: str, *arguments: str) -> str:
        """Return what a command prints. Raises `SlurmError`."""
        env = {name: value for name, value in os.environ.items() if not name.startswith(_DROPPED)} | {"LC_ALL": "C"}
        try:
            done = subprocess.run(  # noqa: S603 - the cluster's own commands
                [self.path(program), *arguments],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_SECONDS,
                env=env,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise SlurmError(f"{program} did not answer within {_SECONDS:.0f} seconds", unanswered=True) from error
        except OSError as error:
            raise SlurmError(f"{program}: {error.strerror}", unanswered=False) from error
        if done.returncode:
            message = _clean(done.stderr.splitlines()) or f"{program} ended with code {done.returncode}"
            raise SlurmError(
                message, unanswered=done.returncode < 0 or any(sign in done.stderr for sign in _UNANSWERED)
            )
        return done.stdout


def _clean(lines: Sequence[str]) -> str:
    """Return what a command said, without the words before each line."""
    errors = (line.partition("error: ")[2] or line for line in lines if line.strip())
    return "; ".join(dict.fromkeys(line.strip() for line in errors))[:1000]
