"""Operations on folder trees."""

import os
import shutil
from contextlib import suppress
from pathlib import Path

from core.ids import new_id

_DEEPEST = 64
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def remove_tree(folder: Path) -> None:
    """Delete a folder recursively, also while other processes delete it; it is not an error if it is missing.

    Raises:
        OSError: Something in it cannot be deleted.
    """
    while True:
        try:
            shutil.rmtree(folder)
        except FileNotFoundError:
            # Either it is gone, or an entry vanished during the deletion and the rest still exists.
            if folder.exists():
                continue
        return


def flatten(folder: Path) -> None:
    """Move deeply nested folders up to the top of this one, under new names.

    Walking a tree needs a stack frame and a file descriptor per level, and both are limited. Links are not followed,
    and folders that cannot be opened stay where they are.
    """
    top = os.open(folder, _FOLDER)
    try:
        waiting = ["."]
        while waiting:
            with suppress(OSError):
                waiting += _raised(top, waiting.pop(), top, 0)
    finally:
        os.close(top)


def _raised(parent: int, name: str, top: int, level: int) -> list[str]:
    """Move up folders that are nested too deep in this one; returns their new names."""
    if level > _DEEPEST:
        os.rename(name, raised := new_id("deep"), src_dir_fd=parent, dst_dir_fd=top)
        return [raised]
    opened = os.open(name, _FOLDER, dir_fd=parent)
    try:
        with os.scandir(opened) as entries:
            inner = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
        found: list[str] = []
        for one in inner:
            with suppress(OSError):
                found += _raised(opened, one, top, level + 1)
        return found
    finally:
        os.close(opened)
