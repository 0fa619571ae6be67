"""The interface of backends whose running jobs users can enter."""

from typing import Protocol, runtime_checkable

from worker.backends.base import Handle
from worker.runner.streams import ExecRequest, JobStream


@runtime_checkable
class ExecBackend(Protocol):
    """A backend whose running jobs users can enter."""

    def run_in_job(self, handle: Handle, request: ExecRequest) -> JobStream:
        """Start a command in a running job: with its user, variables, folder, limits and network."""

    def connect_to_job(self, handle: Handle, port: int, session_id: str) -> JobStream:
        """Connect to a TCP port that the job listens on. Raises `ExecRefused`: nothing listens there."""
