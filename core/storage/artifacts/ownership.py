"""Gives stored files to the worker at the end of an attempt, so that no other process can change them.

A job may have passed a descriptor of a file, or of its folder, to another job. The stored file is a link to that file.
If the worker is not root, another job can still open a file anew: see decision 4.
"""

import errno
import fcntl
import os
import signal
import stat
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import groupby
from pathlib import Path

from core.storage.artifacts.folder_mirror import UNSETTLED, FolderMirror, Stopped, never, opened_incoming
from core.storage.artifacts.scan import FileStat, FolderScan, SkipList, scan
from core.system.trees import OPEN_FILE, opened_beneath

# Setuid and setgid bits are useless in a download, and a privilege risk on this host.
_REMOVED = stat.S_ISUID | stat.S_ISGID | stat.S_IWGRP | stat.S_IWOTH
_PROBE = "probe"
_REFUSED = frozenset({errno.EAGAIN, errno.EACCES})
"""Errors of a lease: another process has the file open for writing, or the file belongs to another user."""


def take_over(
    directory: Path, folder: int, stored: FolderScan, skips: SkipList, stopped: Stopped = never
) -> FolderScan:
    """Give all stored files to this process's user, and replace by a copy what other processes have open for writing.

    Returns the files that no other process has open for writing; without leases on this file system, all files.

    Args:
        folder: Descriptor of the folder with its files.
        skips: Gets the files that are not copied because of a stop, or that change meanwhile.
        stopped: Returns True once nothing more is to be copied.
    """
    for _, descriptor in _opened(folder, stored):
        _own(descriptor)
    # Once all are owned: a process that was about to open a file has done so by now.
    writable = [path for path, descriptor in _opened(folder, stored) if _has_writer(descriptor)]
    if not writable:
        return stored
    with opened_incoming(directory) as incoming:
        if not _leases_work(incoming):
            return stored
        _copy(folder, incoming, {path: stored.files[path] for path in writable}, skips, stopped)
    after = replace(scan(folder, SkipList()), folders=stored.folders)
    for path in writable:
        if path in after.files and after.files[path].inode == stored.files[path].inode:
            del after.files[path]
    return after


def _own(descriptor: int) -> None:
    """Give a file to this process's user, if that is allowed, and take from all others the right to write."""
    status = os.fstat(descriptor)
    with suppress(PermissionError):
        if status.st_uid != os.geteuid():
            os.fchown(descriptor, os.geteuid(), os.getegid())
        if status.st_mode & _REMOVED:
            os.fchmod(descriptor, stat.S_IMODE(status.st_mode) & ~_REMOVED)


def _has_writer(descriptor: int) -> bool:
    """Check whether any process can write to a file: by a descriptor, also one on its way, or by a mapping.

    The kernel grants a read lease only on a file that nobody has open for writing; other readers do not matter. A file
    that belongs to another user counts as open; on a file system without leases, no file does.
    """
    try:
        # Whoever opens the file at this moment causes a signal; by default it is SIGIO, which ends the process.
        fcntl.fcntl(descriptor, fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_RDLCK)
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    except OSError as error:
        return error.errno in _REFUSED
    return False


def _leases_work(incoming: int) -> bool:
    """Check that a lease is granted on a new file; NFS also refuses one whenever its server has not delegated the file.

    Otherwise every file of every attempt would be copied there.
    """
    descriptor = os.open(_PROBE, OPEN_FILE | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=incoming)
    try:
        return not _has_writer(descriptor)
    finally:
        os.close(descriptor)


def _copy(folder: int, incoming: int, files: dict[str, FileStat], skips: SkipList, stopped: Stopped) -> None:
    mirror = FolderMirror(folder, folder, incoming, skips, stopped, link=False)
    mirror.run(FolderScan(files=files), FolderScan())
    for path in mirror.unsettled:
        skips.add(path, UNSETTLED, lost=True)


def _opened(folder: int, stored: FolderScan) -> Iterator[tuple[str, int]]:
    """Open the stored files one after another; those that cannot be opened are left out."""
    for parent, paths in groupby(stored.files, key=lambda path: path.rpartition("/")[0]):
        with opened_beneath(folder, parent.split("/") if parent else ()) as inside:
            for path in paths:
                try:
                    descriptor = os.open(path.rpartition("/")[2], OPEN_FILE, dir_fd=inside)
                except OSError:
                    continue
                try:
                    yield path, descriptor
                finally:
                    os.close(descriptor)
