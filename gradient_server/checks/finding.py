from dataclasses import dataclass
from enum import StrEnum


class Status(StrEnum):
    OK = "ok"
    WARNING = "warning"  # the service works, but not fully, or not for long
    PROBLEM = "problem"  # something does not work


@dataclass(frozen=True, slots=True)
class Finding:
    check: str
    status: Status
    message: str
    fix: str | None = None  # the remedy; None if the status is OK


def ok(check: str, message: str) -> Finding:
    return Finding(check, Status.OK, message)


def warning(check: str, message: str, fix: str) -> Finding:
    return Finding(check, Status.WARNING, message, fix)


def problem(check: str, message: str, fix: str) -> Finding:
    return Finding(check, Status.PROBLEM, message, fix)
