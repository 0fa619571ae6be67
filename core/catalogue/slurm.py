"""Options of sbatch for the jobs of a machine type."""

import math
import re
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from core.errors import SpecInvalid

_RESERVED = re.compile(
    r"--(job-name|comment|output|error|input|open-mode|requeue|no-requeue|signal|time|export|export-file|parsable|wrap"
    r"|array|nodes|ntasks|test-only|wait|hold|dependency|begin|clusters|propagate|chdir|get-user-env)(=|\Z)"
)
"""Options of sbatch that the launcher itself sets, or that would change how many programs a job is."""
_RESOURCE = re.compile(
    r"--(partition|gres|gpus|gpus-per-.*|cpus-per-.*|ntasks-per-.*|mem|mem-.*|tres-per-.*|exclusive|cores-per-.*"
    r"|mincpus|sockets-per-.*|threads-per-.*|time-min|uid|gid)(=|\Z)"
)
"""Options that would give a job more than its price says."""
_OPTION = re.compile(r"--[a-z][a-z-]*(=[^\x00-\x1f]*)?\Z")


def check_options(options: tuple[str, ...]) -> None:
    """Refuse options that sbatch would take for something else, and those that belong to the launcher."""
    for option in options:
        if not _OPTION.match(option):
            raise ValueError(f"{option!r} is not an option such as --exclusive or --licenses=matlab")
        if _RESERVED.match(option):
            raise ValueError(f"{option!r} is set for each job; leave it out")


def check_job_options(options: tuple[str, ...]) -> None:
    """Refuse options that a job may not set by itself: the launcher's, and what its machine type and price say."""
    try:
        check_options(options)
    except ValueError as error:
        raise SpecInvalid(f"{error}.", field="slurmOptions") from None
    resource = next((option for option in options if _RESOURCE.match(option)), None)
    if resource is not None:
        raise SpecInvalid(
            f"{resource[:80]!r}: what a job gets is its machine type's. Choose another, or set cpus or memoryMb.",
            field="slurmOptions",
        )


class SlurmRequest(BaseModel):
    """Options of sbatch; what is not set is the cluster's default."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    partition: str | None = None
    gres: str | None = Field(None, description="such as gpu:1 or gpu:a100:2")
    cpus: int | None = Field(None, ge=1)
    memory_mb: int | None = Field(None, ge=1)
    time_limit: int | None = Field(None, ge=60, description="seconds; the longest that a job may run")
    constraint: str | None = Field(None, description="features of the nodes")
    account: str | None = None
    qos: str | None = None
    reservation: str | None = None
    options: tuple[str, ...] = Field((), description="further options of sbatch, such as --exclusive")

    @model_validator(mode="after")
    def _has_options(self) -> Self:
        check_options(self.options)
        return self

    def longest(self, seconds: float | None) -> float | None:
        """Return how long a job may run that wants so long, at most as long as its machine type allows."""
        return min(filter(None, (self.time_limit, seconds)), default=None)

    def sbatch_options(self, cpus: float | None, memory_mb: int | None, seconds: float | None) -> list[str]:
        """Return the options of a job. What it requests itself replaces the figures of its machine type.

        `seconds`: how long it may run, its end included; None: as long as the cluster lets it.
        """
        values = {
            "partition": self.partition,
            "gres": self.gres,
            "cpus-per-task": self.cpus if cpus is None else math.ceil(cpus),
            "mem": _in_mib(self.memory_mb if memory_mb is None else memory_mb),
            "time": None if seconds is None else math.ceil(seconds / 60),
            "constraint": self.constraint,
            "account": self.account,
            "qos": self.qos,
            "reservation": self.reservation,
        }
        return [*(f"--{name}={value}" for name, value in values.items() if value is not None), *self.options]


def _in_mib(count: int | None) -> str | None:
    return None if count is None else f"{count}M"
