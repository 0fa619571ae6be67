"""The explanation of a failed job: what the service knows itself, otherwise what its log tells; right, or absent."""

from collections.abc import Sequence
from typing import NamedTuple

from core.jobs.log_failures import LogFailure, find_failure
from core.jobs.reasons import REASONS, FaultOwner

OF_LOG = frozenset({"exit_nonzero", "signalled", "killed"})
"""Reasons of which the service knows no more than how the command ended."""
_BY_FAULT = {FaultOwner.MACHINE: "machine", FaultOwner.SERVICE: "machine", FaultOwner.BUDGET: "budget"}
_REASONS = {
    "code": "command_not_found command_not_executable no_working_dir option_refused secret_missing port_taken",
    "image": "requirements_invalid requirements_install python_unavailable no_shell image_pull image_build image_push",
    "data": "input_missing data_missing workspace_missing workspace_invalid workspace_fetch",
    "disk": "disk_quota disk_full",
    "time": "time_limit tpu_expired",
    "memory": "out_of_memory machine_memory",
    "preempted": "preempted",
}
_BY_REASON = {reason: cause for cause, reasons in _REASONS.items() for reason in reasons.split()}
_OPTIONS = {"memory": "memoryMb", "time": "timeLimit", "preempted": "maxAttempts", "machine": "maxAttempts"}


class Explanation(NamedTuple):
    cause: str | None  # class; None: it is not known
    failure: LogFailure | None = None  # what the log shows, if it is what tells
    option: str | None = None  # the option of a clone that helps


def explain(reason: str | None, detail: str | None, lines: Sequence[str]) -> Explanation:
    """Judge a job that failed for a reason, with the last lines of its log."""
    if reason not in REASONS:
        return Explanation(None)
    failure = find_failure(lines)
    if reason not in OF_LOG:
        cause = _BY_REASON.get(reason) or _BY_FAULT.get(REASONS[reason].fault)
        return Explanation(
            cause, failure if cause is not None and failure.cause == cause else None, _OPTIONS.get(cause or "")
        )
    if failure.cause is None and reason == "signalled":
        failure = failure._replace(cause=find_failure([detail or ""]).cause)
    return Explanation(failure.cause, failure, failure.rule.option if failure.rule else None)
