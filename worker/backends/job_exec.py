"""Entering running jobs: the interface of backends whose jobs users can enter, and the streams that they return."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from worker.backends.base import Handle


class ExecRefused(Exception):
    """The job cannot be entered, or the command cannot be started; its text is for the user."""


@dataclass(frozen=True, slots=True)
class Terminal:
    rows: int
    columns: int
    kind: str


@dataclass(frozen=True, slots=True)
class ExecRequest:
    id: str  # id of the session: lower-case letters and digits
    command: tuple[str, ...]  # program and arguments; not empty
    terminal: Terminal | None = None  # run it in a terminal like this one; None: with three pipes


class JobStream(Protocol):
    """A command in a job, or a connection to one of its ports. Any thread may call any method."""

    def outputs(self) -> Iterator[tuple[int, bytes]]:
        """Yield stream number (1: stdout, 2: stderr) and data, as they come, until the end."""

    def write(self, data: bytes) -> None:
        """Write input, as fast as the job reads it; discard it if the job reads no more."""

    def end_input(self) -> None:
        """Signal the end of the input."""

    def resize(self, rows: int, columns: int) -> None:
        """Change the size of the terminal, if there is one."""

    def send_signal(self, name: str) -> None:
        """Send a signal, by its name without SIG, to the command and its children."""

    def exit_code(self) -> int:
        """Return the exit code, once `outputs` has ended."""

    def close(self) -> None:
        """End the command with its children, and free what it used; a repeated call has no effect."""


@runtime_checkable
class ExecBackend(Protocol):
    """A backend whose running jobs users can enter."""

    def run_in_job(self, handle: Handle, request: ExecRequest) -> JobStream:
        """Start a command in a running job: with its user, variables, folder, limits and network."""

    def connect_to_job(self, handle: Handle, port: int, session_id: str) -> JobStream:
        """Connect to a TCP port that the job listens on. Raises `ExecRefused`: nothing listens there."""
