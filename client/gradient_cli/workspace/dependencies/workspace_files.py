"""Reading of files in a workspace, which may be hostile and change meanwhile."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from gradient_cli.text import decode

# A FIFO opened without O_NONBLOCK would wait for a writer for ever. Windows has no O_NOFOLLOW, others no O_BINARY.
_FLAGS = os.O_RDONLY
for _name in ("O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC", "O_BINARY"):
    _FLAGS |= getattr(os, _name, 0)


_MAX_PATH = 4096  # characters; no system opens a longer one


class TooLarge(ValueError):
    """A file is larger than a person would write it."""


def is_outside(workspace: Path, path: Path) -> bool:
    """Return whether a path leads out of a workspace, which is resolved."""
    return len(str(path)) <= _MAX_PATH and not path.resolve().is_relative_to(workspace)


def find_file(workspace: Path, path: Path) -> Path | None:
    """Return the regular file that a path leads to; None if there is none, or it is outside of the workspace.

    `workspace`: resolved. Raises `OSError`, or `RuntimeError` before Python 3.13: a link leads to itself.
    """
    try:
        os.lstat(path)  # most are not there, and to resolve a path takes much longer
    except (FileNotFoundError, NotADirectoryError):
        return None
    file = path.resolve()
    return file if file.is_relative_to(workspace) and file.is_file() else None


def read_text(workspace: Path, path: Path, limit: int, errors: str = "replace") -> str | None:
    """Return the text of what `find_file` finds. Raises `TooLarge`: it has more than `limit` bytes."""
    file = find_file(workspace, path)
    if file is None:
        return None
    descriptor = os.open(file, _FLAGS)
    with os.fdopen(descriptor, "rb") as opened:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return None
        data = opened.read(limit + 1)
    if len(data) > limit:
        raise TooLarge(f"more than {limit:,} bytes")
    return decode(data, errors)
