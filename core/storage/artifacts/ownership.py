"""Gives stored files to the worker at the end of an attempt, so that nobody else opens them for writing any more.

A stored file is a link to the job's own file. If the worker is not root, or another job was passed a descriptor that it
may write to, the file can still change, and then has not its sha256 any more: see decision 4.
"""

import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from itertools import groupby

from core.storage.artifacts.scan import FolderScan
from core.system.trees import OPEN_FILE, opened_beneath

# Setuid and setgid bits are useless in a download, and a privilege risk on this host.
_REMOVED = stat.S_ISUID | stat.S_ISGID | stat.S_IWGRP | stat.S_IWOTH


def take_over(folder: int, stored: FolderScan) -> None:
    """Give all stored files to this process's user, if that is allowed, and take from others the right to write.

    `folder`: descriptor of the folder with its files.
    """
    for descriptor in _opened(folder, stored):
        status = os.fstat(descriptor)
        with suppress(PermissionError):
            if status.st_uid != os.geteuid():
                os.fchown(descriptor, os.geteuid(), os.getegid())
            if status.st_mode & _REMOVED:
                os.fchmod(descriptor, stat.S_IMODE(status.st_mode) & ~_REMOVED)


def _opened(folder: int, stored: FolderScan) -> Iterator[int]:
    """Open the stored files one after another; those that cannot be opened are left out."""
    for parent, paths in groupby(stored.files, key=lambda path: path.rpartition("/")[0]):
        with opened_beneath(folder, parent.split("/") if parent else ()) as inside:
            for path in paths:
                try:
                    descriptor = os.open(path.rpartition("/")[2], OPEN_FILE, dir_fd=inside)
                except OSError:
                    continue
                try:
                    yield descriptor
                finally:
                    os.close(descriptor)
