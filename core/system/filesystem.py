"""Files and folders of the service itself: atomic writes, free space, and GRADIENT_HOME closed to other users."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from core.formatting import MIB
from core.system.untrusted_folders import OPEN_FOLDER

LINK_REFUSED = frozenset({errno.EXDEV, errno.EPERM, errno.EACCES, errno.EMLINK, errno.ENOSYS, errno.EOPNOTSUPP})
"""Errors of a link where there are no hard links, or not between these two folders."""

FULL_DISK_ERRNOS = frozenset({errno.ENOSPC, errno.EDQUOT})  # errors of a disk, or of a quota on it, without room

_PRIVATE_FOLDERS = ("workspaces", "logs", "artifacts", "attempts", "workers")
"""Closed to jobs: their own folders are mounted one by one."""


def write_atomically(
    path: Path,
    content: bytes | Iterable[bytes],  # the bytes, or blocks of them
    *,
    durable: bool = True,  # flush file and name to disk, so that they survive a power cut
    replace: bool = True,
    mode: int = 0o600,
    folder: Path | None = None,  # folder of the temporary file, on the same file system; the default is the file's own
) -> None:
    """Write a file so that readers find all of its content or none; a link in its place is not followed.

    Raises:
        FileExistsError: The file exists, and `replace` is False.
        OSError: The file cannot be written; an existing one is unchanged.
    """
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=folder or path.parent)
    new = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as out:
            os.fchmod(descriptor, mode)
            out.writelines([content] if isinstance(content, bytes) else content)
            if durable:
                out.flush()
                os.fsync(out.fileno())
        if replace:
            new.replace(path)
        else:
            try:
                os.link(new, path)
            except OSError as error:
                if error.errno not in LINK_REFUSED:
                    raise
                if path.exists():
                    raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path)) from error
                # Without hard links, another process can take the name in between.
                new.replace(path)
    finally:
        new.unlink(missing_ok=True)
    if durable:
        sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, OPEN_FOLDER & ~os.O_NOFOLLOW)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_all(descriptor: int, data: bytes | memoryview) -> None:
    """Write all the data: one call of `os.write` may write only a part of it."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def free_bytes(folder: Path) -> int:
    """Return the free bytes on the disk of a folder, which need not exist yet."""
    try:
        return shutil.disk_usage(folder).free
    except FileNotFoundError:
        return free_bytes(folder.parent)


def device_of(path: Path) -> int | None:
    """Return the device number of the disk that a path is on; None: there is no such path."""
    try:
        return path.stat().st_dev
    except OSError:
        return None


def describe_shortage(folders: Iterable[Path], min_free_mb: int, *, coming: int = 0) -> str | None:
    """Describe the first of these folders whose disk has too little space; None if all have enough."""
    for folder in folders if min_free_mb else ():
        free = free_bytes(folder)
        if free - coming < min_free_mb * MIB:
            return f"{free // MIB:,} MiB are free on the disk of {folder}, but {min_free_mb:,} MiB have to stay free"
    return None


def make_private(home: Path, sqlite_file: Path | None) -> None:
    """Create GRADIENT_HOME and deny others access to it and its folders; what another user owns is left as it is."""
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    for folder in (home, *(home / name for name in _PRIVATE_FOLDERS)):
        with suppress(FileNotFoundError, PermissionError):
            folder.chmod(0o700)
    if sqlite_file is not None:
        with suppress(FileNotFoundError, PermissionError):
            sqlite_file.chmod(0o600)
