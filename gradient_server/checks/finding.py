"""What a check finds."""

from dataclasses import dataclass
from enum import StrEnum


class Status(StrEnum):
    """How bad it is."""

    OK = "ok"
    WARNING = "warning"
    """The service works, but not as it should, or not for long."""
    PROBLEM = "problem"
    """Something does not work."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        check: What was looked at, as one word for scripts.
        message: What was found.
        fix: What to do about it; None if all is well.
    """

    check: str
    status: Status
    message: str
    fix: str | None = None


def ok(check: str, message: str) -> Finding:
    """All is well."""
    return Finding(check, Status.OK, message)


def warning(check: str, message: str, fix: str) -> Finding:
    """It works, but should be looked after."""
    return Finding(check, Status.WARNING, message, fix)


def problem(check: str, message: str, fix: str) -> Finding:
    """It does not work."""
    return Finding(check, Status.PROBLEM, message, fix)


def duration(seconds: float) -> str:
    """A time in words, in the unit that suits it."""
    for size, unit in ((86400, "days"), (3600, "hours"), (60, "minutes")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} seconds"
