"""Search in a folder in which jobs create and remove files meanwhile."""

import contextlib
import fnmatch
import os
from collections.abc import Iterator
from pathlib import Path


def find(folder: Path, pattern: str) -> Iterator[Path]:
    """Find what has such a name; `Path.rglob` would raise where a folder goes away before it is read."""
    for parent, folders, files in os.walk(folder):
        yield from (Path(parent, name) for name in fnmatch.filter(folders + files, pattern))


def find_files_with(folder: Path, value: str) -> list[Path]:
    """Find the files that hold a value."""
    found = []
    for path in find(folder, "*"):
        with contextlib.suppress(FileNotFoundError):
            if path.is_file() and not path.is_symlink() and value.encode() in path.read_bytes():
                found.append(path)
    return found
