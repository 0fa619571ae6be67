"""Jobs, log lines and artifacts, as the server describes them."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import Any

from gradient_cli import terminal
from gradient_cli.errors import ClientError
from gradient_cli.follow import describe_state
from gradient_cli.formatting import parse_time


@dataclass(frozen=True)
class LogLine:
    """One line of a job's output.

    Attributes:
        number: Its number, from 1.
        time: When the worker read it.
        text: The line as the job wrote it; `str(line)` has no terminal escape sequences.
    """

    number: int
    time: datetime
    text: str

    @classmethod
    def parse(cls, row: dict[str, Any]) -> LogLine:
        return cls(int(row["line"]), parse_time(row["timestamp"]), row["message"])

    def __str__(self) -> str:
        return terminal.sanitize_line(self.text, colours=False)


@dataclass(frozen=True)
class Artifact:
    """A file that a job left.

    Attributes:
        path: Its path in the job's artifacts.
        size: Its size in bytes.
        sha256: Its digest; None while the job may still write it.
        modified: When it was last changed.
    """

    path: str
    size: int
    sha256: str | None
    modified: datetime

    @classmethod
    def parse(cls, row: dict[str, Any]) -> Artifact:
        return cls(row["path"], row["size"], row["sha256"], parse_time(row["modified"]))


@dataclass(frozen=True)
class Prediction:
    """A judgement of a job, and estimates for other machine types, none of which was measured.

    Attributes:
        bottleneck: `input`, `compute`, `memory`, `communication`, `startup` or `overhead`; None: not measured.
        summary: The judgement as a sentence.
        advice: Remedies, best first.
        missing: Missing metrics that the estimates require.
        machines: The estimates by machine type, fastest first, by the names of the HTTP API.
        data: Everything that the server returned, by the names of the HTTP API.
    """

    bottleneck: str | None
    summary: str
    advice: list[str]
    missing: list[str]
    machines: dict[str, dict[str, Any]] = field(repr=False)
    data: dict[str, Any] = field(repr=False)

    @classmethod
    def parse(cls, data: dict[str, Any]) -> Prediction:
        judged = data["bottleneck"]
        machines = {machine["machineType"]: machine for machine in data["machines"]}
        return cls(judged["kind"], judged["summary"], judged["advice"], data["missing"], machines, data)


@dataclass(init=False, eq=False)
class JobRecord:
    """A job as the server last described it.

    Attributes:
        state: Pending, Running, Kept, Stopped (it succeeded), Failed, Error or Cancelled.
        reason: The stable code for why it waits or how it ended.
        message: The reason as a sentence.
        cost: US dollars.
        params: Its parameters by name.
        data: Everything that the server returned, by the names of the HTTP API.
    """

    id: str
    name: str
    state: str
    reason: str | None
    exit_code: int | None
    machine_type: str
    message: str | None = field(repr=False)
    project: str = field(repr=False)
    command: str = field(repr=False)
    tags: list[str] = field(repr=False)
    params: dict[str, Any] = field(repr=False)
    attempt: int = field(repr=False)
    created_at: datetime = field(repr=False)
    started_at: datetime | None = field(repr=False)
    finished_at: datetime | None = field(repr=False)
    duration_seconds: float | None = field(repr=False)
    cost: float = field(repr=False)
    url: str = field(repr=False)
    data: dict[str, Any] = field(repr=False)

    def _update(self, data: dict[str, Any]) -> None:
        for attribute in fields(JobRecord):
            value = data.get(re.sub("_([a-z])", lambda match: match[1].upper(), attribute.name))
            setattr(self, attribute.name, parse_time(value) if attribute.name.endswith("_at") and value else value)
        self.data = data

    @property
    def ended(self) -> bool:
        """True if the job has ended."""
        return self.finished_at is not None

    @property
    def succeeded(self) -> bool:
        """True if the job has ended with exit code 0."""
        return self.state == "Stopped"

    def raise_for_state(self) -> None:
        """Raise an error if the job has ended with anything but exit code 0.

        Raises:
            JobFailed: It has.
        """
        if self.ended and not self.succeeded:
            raise JobFailed(f"job {self.id}: {describe_state(self.data)}", self)


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
