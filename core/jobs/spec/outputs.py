"""Patterns of a job's outputs: files of the workspace that are copied to its artifacts at the end."""

from collections.abc import Sequence
from fnmatch import fnmatchcase

from core.errors import SpecInvalid

MAX_PATTERNS = 50
MAX_PATTERN = 500
_ANY_DEPTH = "**"


def check_outputs(patterns: Sequence[str]) -> None:
    """Refuse patterns that cannot match a file of the workspace."""
    if len(patterns) > MAX_PATTERNS:
        raise _invalid(f"{len(patterns)} patterns; at most {MAX_PATTERNS} are allowed.")
    for pattern in patterns:
        if not pattern.strip() or len(pattern) > MAX_PATTERN:
            raise _invalid(f"A pattern has {len(pattern):,} characters; 1 to {MAX_PATTERN} are allowed.")
        if not pattern.isprintable():
            raise _invalid("A pattern contains a line break or another control character.")
        if pattern.startswith("/") or ".." in pattern.split("/"):
            raise _invalid(f"{pattern[:80]!r} leads out of the workspace.")


def matches(pattern: str, path: str) -> bool:
    """Return whether a pattern matches a path of the workspace, or a folder that contains it.

    `*` and `?` match within one name, and `**` any number of folders. The time does not depend on the order of the
    characters, because a job chooses the names of its files.
    """
    names = path.split("/")
    reached = {0}
    for part in pattern.rstrip("/").split("/"):
        if part == ".":
            continue
        if part == _ANY_DEPTH:
            reached = set(range(min(reached), len(names) + 1))
        else:
            reached = {at + 1 for at in reached if at < len(names) and fnmatchcase(names[at], part)}
        if not reached:
            return False
    return max(reached) > 0


def _invalid(what: str) -> SpecInvalid:
    return SpecInvalid(f"{what} Write a path relative to the workspace, such as outputs/** or *.pt.", field="outputs")
