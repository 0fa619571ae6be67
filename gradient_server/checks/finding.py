"""The result of a check."""

from dataclasses import dataclass
from enum import StrEnum


class Status(StrEnum):
    """The severity of a finding."""

    OK = "ok"
    WARNING = "warning"
    """The service works, but not fully, or not for long."""
    PROBLEM = "problem"
    """Something does not work."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check.

    Attributes:
        check: The checked thing, as one word for scripts.
        message: The result in words.
        fix: The remedy; None if the status is OK.
    """

    check: str
    status: Status
    message: str
    fix: str | None = None


def ok(check: str, message: str) -> Finding:
    """Build a finding without a problem."""
    return Finding(check, Status.OK, message)


def warning(check: str, message: str, fix: str) -> Finding:
    """Build a finding that needs attention."""
    return Finding(check, Status.WARNING, message, fix)


def problem(check: str, message: str, fix: str) -> Finding:
    """Build a finding of something that does not work."""
    return Finding(check, Status.PROBLEM, message, fix)
