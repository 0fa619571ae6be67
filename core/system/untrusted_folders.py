"""Folders that others may write to, by descriptor.

What a job, a build, a container, a worker on another host or an archive could write may become a link at any moment. So
a folder is opened once, refusing a link, and what is below it is reached from its descriptor, one name at a time. The
paths that functions here take are of the service's own folders: nobody else may change a name on the way.
"""

from __future__ import annotations

import errno
import logging
import math
import os
import secrets
import stat
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

logger = logging.getLogger(__name__)

OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
"""Flags that open a folder, and refuse a link to one."""
# A FIFO opened without O_NONBLOCK would wait for a writer for ever.
OPEN_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
CREATE_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC

NOT_A_FOLDER = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP})
"""Errors of opening what is not there, or is a link or a file, as a folder."""

MAX_DEPTH = 100
"""Folders in one another, each of which takes a descriptor while they are walked; what jobs need is far less."""
_MAX_COMPARED = 100_000
_MAX_NESTED = 64  # folders open at once; each takes a descriptor and a stack frame
_PASSES = 2  # of a removal: a process that has just ended may have written during the first
_DEEP_SECONDS = 60.0
"""For folders nested deeper than that: a process with a descriptor of one can make more of them for ever."""
_POLL_SECONDS = 0.5


@contextmanager
def opened_folder(path: Path) -> Iterator[int]:
    """Open a folder for the duration of a `with`; yields its descriptor."""
    descriptor = os.open(path, OPEN_FOLDER)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def open_beneath(folder: int, parts: Sequence[str], *, create: bool = False, mode: int = 0o700) -> int:
    """Open a folder below another one, refusing links at every step.

    Returns a descriptor that the caller closes.

    Args:
        folder: Descriptor of the folder to start from; stays open.
        parts: Folder names, outermost first; if empty, the folder itself is duplicated.
    """
    opened = os.dup(folder)
    for part in parts:
        try:
            deeper = _open_folder(part, opened, create=create, mode=mode)
        finally:
            os.close(opened)
        opened = deeper
    return opened


@contextmanager
def opened_beneath(folder: int, parts: Sequence[str], *, create: bool = False, mode: int = 0o700) -> Iterator[int]:
    """Open a folder as `open_beneath` does, for the duration of a `with`; yields its descriptor."""
    opened = open_beneath(folder, parts, create=create, mode=mode)
    try:
        yield opened
    finally:
        os.close(opened)


def open_file_beneath(folder: int, parts: Sequence[str]) -> int:
    """Open a file below a folder for reading, as `open_beneath` opens folders; returns its descriptor."""
    *parents, name = parts
    with opened_beneath(folder, parents) as parent:
        return os.open(name, OPEN_FILE, dir_fd=parent)


def _open_folder(name: str, parent: int, *, create: bool, mode: int) -> int:
    try:
        return os.open(name, OPEN_FOLDER, dir_fd=parent)
    except FileNotFoundError:
        if not create:
            raise
    with suppress(FileExistsError):  # made by another process meanwhile
        os.mkdir(name, 0o700, dir_fd=parent)
    opened = os.open(name, OPEN_FOLDER, dir_fd=parent)
    os.fchmod(opened, mode)  # unlike the mode of mkdir, it does not depend on the umask
    return opened


class Entry(NamedTuple):
    """A name below a folder; `folder`, the descriptor of the folder that has it, is closed before the next entry."""

    folder: int
    name: str
    path: str  # from the top, as the operating system decoded it
    status: os.stat_result


OnError = Callable[[OSError], None]


def _raise(error: OSError) -> None:
    raise error


def walk(top: int, on_error: OnError = _raise, *, every_device: bool = False) -> Iterator[Entry]:
    """Yield all that is below an opened folder, each folder before its content.

    One that vanishes or becomes a link meanwhile has no content.

    Args:
        on_error: Called if something cannot be read, or is nested deeper than MAX_DEPTH.
        every_device: Enter other file systems, too.
    """
    return _walk(top, "", None if every_device else os.fstat(top).st_dev, 0, on_error)


def _walk(folder: int, prefix: str, device: int | None, depth: int, on_error: OnError) -> Iterator[Entry]:
    if depth > MAX_DEPTH:
        on_error(OSError(errno.ENAMETOOLONG, f"Folders are nested deeper than {MAX_DEPTH}", prefix[:100]))
        return
    try:
        names = os.listdir(folder)
    except OSError as error:
        on_error(error)
        return
    for name in names:
        inner = None
        try:
            status = os.stat(name, dir_fd=folder, follow_symlinks=False)
            yield Entry(folder, name, prefix + name, status)
            if stat.S_ISDIR(status.st_mode) and device in {None, status.st_dev}:
                inner = os.open(name, OPEN_FOLDER, dir_fd=folder)
        except OSError as error:
            if error.errno not in NOT_A_FOLDER:
                on_error(error)
        if inner is not None:
            try:
                yield from _walk(inner, f"{prefix}{name}/", device, depth + 1, on_error)
            finally:
                os.close(inner)


def folder_state(folder: Path) -> dict[str, tuple[int, int]] | None:
    """Return what is in a folder: equal as long as nobody changes anything there. None: too much, or unreadable."""
    try:
        with opened_folder(folder) as top:
            status = os.fstat(top)
            state = {"": (status.st_ino, status.st_ctime_ns)}
            for entry in walk(top):
                state[entry.path] = entry.status.st_ino, entry.status.st_ctime_ns
                if len(state) > _MAX_COMPARED:
                    return None
            return state
    except OSError:
        return None


def chown_tree(folder: Path, uid: int, gid: int) -> None:
    """Give a folder with all in it to a user; what is the user's already stays as it is, its times too."""
    with opened_folder(folder) as top:
        status = os.fstat(top)
        if (status.st_uid, status.st_gid) != (uid, gid):
            os.fchown(top, uid, gid)
        for entry in walk(top):
            if (entry.status.st_uid, entry.status.st_gid) != (uid, gid):
                with suppress(FileNotFoundError):
                    os.chown(entry.name, uid, gid, dir_fd=entry.folder, follow_symlinks=False)


def chmod_tree(folder: Path, mode_of: Callable[[int], int]) -> None:
    """Change the permissions of all files and folders below a folder to what `mode_of` returns for their `st_mode`."""
    with opened_folder(folder) as top:
        for entry in walk(top):
            if stat.S_ISLNK(entry.status.st_mode):
                continue
            handle = os.open(entry.name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=entry.folder)
            try:
                mode = os.fstat(handle).st_mode
                if not stat.S_ISLNK(mode) and (wanted := stat.S_IMODE(mode_of(mode))) != stat.S_IMODE(mode):
                    Path(f"/proc/self/fd/{handle}").chmod(wanted)  # `fchmod` refuses such descriptors
            finally:
                os.close(handle)


def move(source: Path, target: Path) -> None:
    """Give another name to a file or folder: both names are of the service's own folders, what is in it may not be."""
    source.rename(target)


def remove_tree(path: Path, seconds: float = math.inf) -> None:
    """Delete a folder with all in it, or what else has its name; it is not an error if nothing has.

    Links are not followed, and folders without permissions or nested without end are deleted, too. Raises `OSError`:
    something is left, because it cannot be deleted, somebody goes on to write there or the seconds are over.
    """
    try:
        folder = os.open(path.parent, OPEN_FOLDER & ~os.O_NOFOLLOW)
    except (FileNotFoundError, NotADirectoryError):
        return
    try:
        remove_beneath(folder, path.name, seconds)
    finally:
        os.close(folder)


def remove_beneath(folder: int, name: str, seconds: float = math.inf) -> None:
    """Delete what has a name in an opened folder, as `remove_tree` does."""
    until = time.monotonic() + seconds
    for _ in range(_PASSES):
        failures: list[OSError] = []
        if _unlink(folder, name):
            return
        try:
            top = _open_to_empty(folder, name)
            try:
                _empty_whole(top, failures, until)
            finally:
                os.close(top)
            os.rmdir(name, dir_fd=folder)
        except FileNotFoundError:
            return
        except OSError as error:
            failures.append(error)
            continue
        return
    raise failures[0]


def _empty_whole(top: int, failures: list[OSError], until: float) -> None:
    moved = _empty(top, top, 0, failures, until)
    until = min(until, time.monotonic() + _DEEP_SECONDS)
    while moved and time.monotonic() < until:
        moved = _empty(top, top, 0, failures, until)


def _empty(folder: int, top: int, level: int, failures: list[OSError], until: float) -> bool:
    """Delete what is in a folder; return whether folders nested too deeply in it were moved up, to be emptied next."""
    moved = False
    for name in os.listdir(folder):
        if time.monotonic() > until:
            failures.append(TimeoutError(errno.ETIMEDOUT, "There was no time to delete all", name))
            return False
        try:
            if _unlink(folder, name):
                continue
            inner = _open_to_empty(folder, name)
            try:
                if level == _MAX_NESTED:
                    os.rename(name, f"deep{secrets.token_hex(8)}", src_dir_fd=folder, dst_dir_fd=top)
                    moved = True
                    continue
                moved |= _empty(inner, top, level + 1, failures, until)
            finally:
                os.close(inner)
            os.rmdir(name, dir_fd=folder)
        except FileNotFoundError:  # another process deletes it, too
            continue
        except OSError as error:
            failures.append(error)
    return moved


def _unlink(folder: int, name: str) -> bool:
    """Delete what is no folder; return whether the name is gone."""
    try:
        os.unlink(name, dir_fd=folder)
    except FileNotFoundError:
        return True
    except IsADirectoryError:
        return False
    return True


def _open_to_empty(folder: int, name: str) -> int:
    if os.geteuid() == 0:  # root needs no permission
        return os.open(name, OPEN_FOLDER, dir_fd=folder)
    # Without the right to read a folder, its owner can open it in this way only.
    handle = os.open(name, OPEN_FOLDER | os.O_PATH, dir_fd=folder)
    try:
        with suppress(PermissionError):
            Path(f"/proc/self/fd/{handle}").chmod(0o700)  # `fchmod` refuses such descriptors
        return os.open(".", OPEN_FOLDER, dir_fd=handle)
    finally:
        os.close(handle)


def measure_used_bytes(paths: Sequence[Path], ended: Callable[[], bool] = lambda: False) -> int | None:
    """Measure the disk space of files and folders: blocks, not sizes; hard links once; other file systems not.

    Runs `du` as a separate process: a huge folder must not slow this one down. It begins at descriptors, and follows no
    link from there. Returns the bytes, without those of paths that are not there; None if measuring failed, or `ended`
    returned True first.
    """
    with ExitStack() as stack:
        opened = []
        for path in paths:
            with suppress(OSError):
                opened.append(os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC))
                stack.callback(os.close, opened[-1])
        return _measure(opened, ended) if opened else 0


def _measure(opened: Sequence[int], ended: Callable[[], bool]) -> int | None:
    # Only the descriptors themselves are links that `du` follows (-D).
    command = ["du", "-skxD", "--", *(f"/proc/self/fd/{descriptor}" for descriptor in opened)]
    try:
        with subprocess.Popen(  # noqa: S603 - descriptors, by number
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, pass_fds=opened
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
