"""Why a job failed: what the service knows itself, and otherwise what the log tells. It is right, or absent."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from core.jobs.log_failures import LogFailure, Place, find_failure
from core.jobs.reasons import REASONS, FaultOwner

OF_LOG = frozenset({"exit_nonzero", "signalled", "killed"})
"""Reasons of which the service knows no more than the exit code."""
_BY_FAULT = {FaultOwner.MACHINE: "machine", FaultOwner.SERVICE: "machine", FaultOwner.BUDGET: "budget"}
_BY_REASON = {
    **dict.fromkeys(("command_not_found", "command_not_executable", "no_working_dir", "option_refused"), "code"),
    **dict.fromkeys(("secret_missing", "port_taken", "slurm_refused"), "code"),
    **dict.fromkeys(("requirements_invalid", "requirements_install", "python_unavailable", "no_shell"), "image"),
    **dict.fromkeys(("image_pull", "image_build", "image_push"), "image"),
    **dict.fromkeys(("input_missing", "data_missing", "workspace_missing", "workspace_invalid"), "data"),
    **dict.fromkeys(("workspace_fetch",), "data"),
    **dict.fromkeys(("disk_quota", "disk_full"), "disk"),
    **dict.fromkeys(("time_limit", "tpu_expired"), "time"),
    "out_of_memory": "memory",
    "preempted": "preempted",
}
_OPTIONS = {"memory": "memoryMb", "time": "timeLimit", "preempted": "maxAttempts", "machine": "maxAttempts"}


@dataclass(frozen=True, slots=True)
class Verdict:
    cause: str | None = None  # class; None: it is not known
    source: str = "service"  # who says so: the service or the log
    failure: LogFailure | None = None  # what the log shows
    option: str | None = None  # the option of a clone that helps

    @property
    def place(self) -> Place | None:
        return self.failure.place if self.failure else None


def find_verdict(reason: str | None, lines: Sequence[str]) -> Verdict:
    """Judge a job that failed for a reason, with the last lines of its log."""
    if reason not in REASONS:
        return Verdict()
    if reason not in OF_LOG:
        cause = _BY_REASON.get(reason) or _BY_FAULT.get(REASONS[reason].fault)
        return Verdict(cause, option=_OPTIONS.get(cause or ""))
    failure = find_failure(lines)
    return Verdict(failure.cause, "log", failure, failure.rule.option if failure.rule else None)
