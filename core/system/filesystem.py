"""Files and folders: atomic writes, removal of trees, free space, and GRADIENT_HOME closed to other users."""

import errno
import logging
import os
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from core.formatting import MIB
from core.ids import new_id
from core.settings import Settings

logger = logging.getLogger(__name__)

OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
"""Flags that open a folder, and refuse a link to one."""

LINK_REFUSED = frozenset({errno.EXDEV, errno.EPERM, errno.EACCES, errno.EMLINK, errno.ENOSYS, errno.EOPNOTSUPP})
"""Errors of a link where there are no hard links, or not between these two folders."""

FULL_DISK_ERRNOS = frozenset({errno.ENOSPC, errno.EDQUOT})  # errors of a disk, or of a quota on it, without room

_MAX_DEPTH = 64
_POLL_SECONDS = 0.5
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
                path.hardlink_to(new)
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


def remove_tree(folder: Path) -> None:
    """Delete a folder recursively, also while other processes delete it; it is not an error if it is missing."""
    while True:
        try:
            shutil.rmtree(folder)
        except FileNotFoundError:
            # Either the folder no longer exists, or an entry vanished during the deletion and the rest still exists.
            if folder.exists():
                continue
        return


def folder_state(folder: Path) -> dict[str, tuple[int, int]] | None:
    """Return what is in a folder: equal as long as nobody changes anything there. None: it cannot be read."""
    found: dict[str, tuple[int, int]] = {}
    waiting = [str(folder)]
    try:
        while waiting:
            path = waiting.pop()
            seen = os.lstat(path)
            found[path.removeprefix(str(folder))] = seen.st_ino, seen.st_ctime_ns
            if stat.S_ISDIR(seen.st_mode):
                waiting += [f"{path}/{name}" for name in os.listdir(path)]  # noqa: PTH208 - names, and many
    except OSError:
        return None
    return found


def hoist_deep_folders(folder: Path) -> None:
    """Move deeply nested folders up to the top of this one, under new names.

    Walking a tree needs a stack frame and a file descriptor per level, and both are limited. Links are not followed,
    and folders that cannot be opened stay where they are.
    """
    top = os.open(folder, OPEN_FOLDER)
    try:
        waiting = ["."]
        while waiting:
            with suppress(OSError):
                waiting += _hoist(top, waiting.pop(), top, 0)
    finally:
        os.close(top)


def unlock_folders(folder: Path) -> None:
    """Give this process's user all rights on the folders in this one, as far as that is allowed.

    No link is followed: another process may be replacing folders by links meanwhile. Raises `RecursionError`: folders
    are nested too deeply; see `hoist_deep_folders`.
    """
    with suppress(OSError):
        _unlock(str(folder), None)


def _unlock(name: str, parent: int | None) -> None:
    # Without the right to read a folder, it can be opened in this way only.
    found = os.open(name, OPEN_FOLDER | os.O_PATH, dir_fd=parent)
    try:
        with suppress(PermissionError):
            Path(f"/proc/self/fd/{found}").chmod(0o700)  # `fchmod` refuses such descriptors
        opened = os.open(".", OPEN_FOLDER, dir_fd=found)
    finally:
        os.close(found)
    try:
        with os.scandir(opened) as entries:
            inner = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
        for one in inner:
            with suppress(OSError):
                _unlock(one, opened)
    finally:
        os.close(opened)


def _hoist(parent: int, name: str, top: int, level: int) -> list[str]:
    """Move up folders that are nested too deep in this one; returns their new names."""
    if level > _MAX_DEPTH:
        os.rename(name, raised := new_id("deep"), src_dir_fd=parent, dst_dir_fd=top)
        return [raised]
    opened = os.open(name, OPEN_FOLDER, dir_fd=parent)
    try:
        with os.scandir(opened) as entries:
            inner = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
        found: list[str] = []
        for one in inner:
            with suppress(OSError):
                found += _hoist(opened, one, top, level + 1)
        return found
    finally:
        os.close(opened)


def free_bytes(folder: Path) -> int:
    """Return the free bytes on the disk of a folder, which need not exist yet."""
    for place in (folder, *folder.parents):
        with suppress(FileNotFoundError):
            return shutil.disk_usage(place).free
    raise FileNotFoundError(folder)


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
            return f"{free // MIB:,} MiB are free on the disk of {folder}, and {min_free_mb:,} MiB have to stay free"
    return None


def make_private(settings: Settings) -> None:
    """Create GRADIENT_HOME and deny others access to it and its folders; what another user owns is left as it is."""
    settings.root.mkdir(parents=True, exist_ok=True, mode=0o700)
    for folder in (settings.root, *(settings.root / name for name in _PRIVATE_FOLDERS)):
        with suppress(FileNotFoundError, PermissionError):
            folder.chmod(0o700)
    if settings.sqlite_file is not None:
        with suppress(FileNotFoundError, PermissionError):
            settings.sqlite_file.chmod(0o600)


def measure_used_bytes(folders: Sequence[Path | str], ended: Callable[[], bool] = lambda: False) -> int | None:
    """Measure the disk space of folders: blocks, not sizes; hard links once; other file systems not.

    Runs `du` as a separate process: a huge folder must not slow this one down. Returns the bytes; None if measuring
    failed, or `ended` returned True first.
    """
    try:
        with subprocess.Popen(  # noqa: S603 - the callers' folders
            ["du", "-skx", "--", *map(str, folders)],  # noqa: S607 - of the system
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        ) as scan:
            while True:
                try:
                    lines = scan.communicate(timeout=_POLL_SECONDS)[0].splitlines()
                    break
                except subprocess.TimeoutExpired:
                    if ended():
                        scan.kill()
                        return None
    except OSError:
        logger.warning("disk_not_measured", exc_info=True)
        return None
    return 1024 * sum(int(line.split()[0]) for line in lines)
