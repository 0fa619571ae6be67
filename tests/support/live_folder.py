"""Search in a folder in which jobs create and remove files meanwhile."""

import fnmatch
import os
from collections.abc import Iterator
from pathlib import Path


def find(folder: Path, pattern: str) -> Iterator[Path]:
    """Find what has such a name; `Path.rglob` would raise where a folder goes away before it is read."""
    for parent, folders, files in os.walk(folder):
        yield from (Path(parent, name) for name in fnmatch.filter(folders + files, pattern))
