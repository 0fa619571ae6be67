"""Public paths of artifacts, and opening files without following links.

A public path is the file's path with `/` between folders. A byte that is not UTF-8, a backslash (a separator on
some systems) and a `%` that could be mistaken for an escape are written `%XX`, so every file
has exactly one public path and every public path is plain text.
"""

import errno
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from core.errors import ArtifactNotFound
from core.system.filesystem import OPEN_FOLDER

MAX_DEPTH = 100
# A fifo opened without O_NONBLOCK would wait for a writer for ever.
OPEN_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC

NOT_A_FOLDER = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP})

_ESCAPED = re.compile(r"[\udc80-\udcff\\]|%(?=[0-9A-Fa-f]{2})")
_ESCAPE = re.compile(rb"%([0-9A-F]{2})")
_NAME_BYTES = 255


def to_public_path(name: str) -> str:
    """Return the public path of a file; `name` is its path as the operating system decoded it."""
    return _ESCAPED.sub(lambda match: f"%{ord(match[0]) & 0xFF:02X}", name)


def parse_public_path(path: str) -> list[str]:
    """Split a public path into the names of its folders and its file.

    Raises `ArtifactNotFound`: no file can have this public path: it is absolute, leads upwards, holds a NUL or a
    backslash, or is not the canonical spelling.
    """
    try:
        raw = _ESCAPE.sub(lambda match: bytes([int(match[1], 16)]), path.encode())
    except UnicodeEncodeError:
        raise not_found(path) from None
    parts = os.fsdecode(raw).split("/")
    usable = all(
        part not in {"", ".", ".."} and "\0" not in part and len(os.fsencode(part)) <= _NAME_BYTES for part in parts
    )
    if not usable or len(parts) > MAX_DEPTH + 1 or to_public_path("/".join(parts)) != path:
        raise not_found(path)
    return parts


def not_found(path: str) -> ArtifactNotFound:
    return ArtifactNotFound(f"No artifact at {path[:200]!r}. List the job's artifacts to see the paths it has.")


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
    with suppress(FileExistsError):  # made by another one meanwhile
        os.mkdir(name, 0o700, dir_fd=parent)
    opened = os.open(name, OPEN_FOLDER, dir_fd=parent)
    os.fchmod(opened, mode)  # unlike the mode of mkdir, it does not depend on the umask
    return opened


@contextmanager
def opened_folder(path: Path) -> Iterator[int]:
    """Open a folder for the duration of a `with`; yields its descriptor."""
    descriptor = os.open(path, OPEN_FOLDER)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
