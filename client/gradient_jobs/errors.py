"""Errors of the SDK beside those of the client."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gradient_cli.errors import ClientError

if TYPE_CHECKING:
    from gradient_jobs.records import JobRecord


class JobFailed(ClientError):
    """A job did not succeed.

    Attributes:
        job: The job.
    """

    def __init__(self, message: str, job: JobRecord, hint: str | None = None) -> None:
        super().__init__(message, hint=hint or f"`gradient-cli jobs logs {job.id}` prints its log.")
        self.job = job


class ResultNotLoaded(JobFailed):
    """A function's job has succeeded, and its result cannot be unpickled here; the cause is why."""


class LibraryMissing(ClientError, ImportError):
    """An optional library is not installed.

    Args:
        part: The part that needs it.
        library: Its name, as pip knows it.
    """

    def __init__(self, part: str, library: str) -> None:
        super().__init__(f"{part} needs {library}, which is not installed", hint=f"Run `pip install {library}`.")
