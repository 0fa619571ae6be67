"""Gives every stored file to the worker and computes its sha256, while another thread flushes the file system to disk.

A stored file is a link to the job's own file. If the worker is not root, or another job was passed a descriptor that it
may write to, the file can still change, and then has not its sha256 any more: see decision 4.
"""

import ctypes
import errno
import hashlib
import os
import stat
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import groupby

from core.storage.artifacts.folder_mirror import STOPPED, Stopped, never
from core.storage.artifacts.manifests import ArtifactFile
from core.storage.artifacts.paths import to_public_path
from core.storage.artifacts.scan import PERMISSIONS, FolderScan, SkipList
from core.system.untrusted_folders import OPEN_FILE, opened_beneath

_BLOCK = 1 << 20
_TRIES = 3
# Setuid and setgid bits are useless in a download, and a privilege risk on this host.
_REMOVED = stat.S_ISUID | stat.S_ISGID | stat.S_IWGRP | stat.S_IWOTH
_libc = ctypes.CDLL(None, use_errno=True)


class _Stopped(Exception):
    """Hashing was stopped."""


class _Changed(Exception):
    """The file changed while it was read."""


def hash_files(folder: int, stored: FolderScan, skips: SkipList, stopped: Stopped = never) -> list[ArtifactFile]:
    """Hash all files below a folder, which nobody else opens for writing from then on.

    Returns once their contents and names are on disk, so that they survive a power cut. Returns the files that did not
    change while they were read, sorted by public path.

    Args:
        folder: Descriptor of the store's folder.
        skips: Gets the files that keep changing, have vanished or cannot be read, or were not read before a stop.
        stopped: Returns True once no more is to be read.
    """
    files: list[ArtifactFile] = []
    if not stored.files:  # a flush of the whole file system is not needed
        return files
    block = bytearray(_BLOCK)
    hashed: dict[int, ArtifactFile] = {}
    with ThreadPoolExecutor(1, thread_name_prefix="flush") as pool:
        flushed = pool.submit(flush_disk, folder)
        for parent, paths in groupby(stored.files, key=_parent):
            with opened_beneath(folder, parent.split("/") if parent else ()) as inside:
                for path in paths:
                    seen = stored.files[path]
                    file = hashed.get(seen.inode) or _hash_until_stable(inside, path, block, skips, stopped)
                    if file:
                        files.append(file._replace(path=to_public_path(path)))
                    if file and seen.links > 1:
                        hashed[seen.inode] = file
        flushed.result()
    return sorted(files)


def _parent(path: str) -> str:
    return path.rpartition("/")[0]


def _hash_until_stable(
    folder: int, path: str, block: bytearray, skips: SkipList, stopped: Stopped
) -> ArtifactFile | None:
    for _ in range(_TRIES):
        try:
            return _hash(folder, path, block, stopped)
        except _Changed:
            continue
        except _Stopped:
            skips.add(path, STOPPED, lost=True)
            return None
        except OSError as error:
            skips.add(path, f"cannot be read: {error.strerror}", lost=True)
            return None
    skips.add(path, "kept changing while it was read", lost=True)
    return None


def _hash(folder: int, path: str, block: bytearray, stopped: Stopped) -> ArtifactFile:
    digest = hashlib.sha256()
    view = memoryview(block)
    descriptor = os.open(path.rpartition("/")[2], OPEN_FILE, dir_fd=folder)
    try:
        _take_over(descriptor)
        before = os.fstat(descriptor)
        size = 0
        # A file that grows as fast as it is read must not be followed for ever.
        while size <= before.st_size and (count := os.readv(descriptor, [block])):
            if stopped():
                raise _Stopped
            digest.update(view[:count])
            size += count
        after = os.fstat(descriptor)
    finally:
        os.close(descriptor)
    # Not the ctime: it also changes when the job removes its own hard link to the file.
    if (size, after.st_size, after.st_mtime_ns) != (before.st_size, before.st_size, before.st_mtime_ns):
        raise _Changed
    mode = before.st_mode & PERMISSIONS
    return ArtifactFile(to_public_path(path), size, before.st_mtime_ns // 1_000_000, digest.hexdigest(), mode)


def _take_over(descriptor: int) -> None:
    """Give a file to this process's user, if that is allowed, and take from others the right to write."""
    status = os.fstat(descriptor)
    with suppress(PermissionError):
        if status.st_uid != os.geteuid():
            os.fchown(descriptor, os.geteuid(), os.getegid())
        if status.st_mode & _REMOVED:
            os.fchmod(descriptor, stat.S_IMODE(status.st_mode) & ~_REMOVED)


def flush_disk(folder: int) -> None:
    """Flush the file system of a folder to disk."""
    if not hasattr(_libc, "syncfs"):
        os.sync()
    elif _libc.syncfs(folder):
        number = ctypes.get_errno() or errno.EIO
        raise OSError(number, os.strerror(number))
