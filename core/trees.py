"""Folders as a whole."""

import os
import shutil
from contextlib import suppress
from pathlib import Path

from core.ids import new_id

_DEEPEST = 64
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def remove_tree(folder: Path) -> None:
    """Removes a folder with all that is in it, also while others remove it as well; removing the missing is success.

    Raises:
        OSError: Something in it cannot be removed.
    """
    while True:
        try:
            shutil.rmtree(folder)
        except FileNotFoundError:
            # Either it is gone, or something in it went before we came to it: then the rest is still there.
            if folder.exists():
                continue
        return


def flatten(folder: Path) -> None:
    """Bring the folders that lie deep in this one up to its top, under other names.

    Whoever walks through a folder takes a call and a file descriptor for each level, and has an end of both. Links
    are not followed, and what cannot be opened stays where it is.
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
    """New names of the folders that lay too deep in this one."""
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
