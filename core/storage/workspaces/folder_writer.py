"""Writes a workspace's entries below one folder, and nowhere else.

Every folder is opened from its parent's descriptor without following links, and every file is created, never opened:
even a folder swapped for a link meanwhile cannot lead outside.
"""

import os
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Self

from core.storage.workspaces.tree import Entry, Parts
from core.system.filesystem import write_all
from core.system.untrusted_folders import CREATE_FILE, OPEN_FOLDER, move, remove_tree

_FOLDER_MODE = 0o755
_FOLDER_AT_LEAST, _FILE_AT_LEAST = 0o700, 0o400  # the owner must be able to read and delete what was unpacked
_PERMISSIONS = 0o777
# File systems disagree on times outside this range, and manifests can hold any value.
_MAX_MTIME_NS = (2**32 - 1) * 10**9


class FolderWriter:
    def __init__(self, root: str) -> None:
        self._root = os.open(root, OPEN_FOLDER)
        # Entries come folder by folder, so the last one's descriptor is nearly always the next one's.
        self._open_parts: Parts = ()
        self._open_folder = self._root
        self._folders: dict[Parts, Entry] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._close_folder()
        os.close(self._root)

    def folder(self, parts: Parts, entry: Entry) -> None:
        """Make a folder; `finish` sets its mode and time, because files are still written to it."""
        self._enter(parts)
        self._folders[parts] = entry

    def file(self, parts: Parts, entry: Entry, chunks: Iterable[bytes]) -> None:
        descriptor = os.open(parts[-1], CREATE_FILE, 0o600, dir_fd=self._enter(parts[:-1]))
        try:
            for chunk in chunks:
                write_all(descriptor, chunk)
            os.fchmod(descriptor, (entry.mode & _PERMISSIONS) | _FILE_AT_LEAST)
            _set_time(descriptor, entry)
        finally:
            os.close(descriptor)

    def open_file(self, parts: Parts) -> BinaryIO:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
        return os.fdopen(os.open(parts[-1], flags, dir_fd=self._enter(parts[:-1])), "rb")

    def finish(self, symlinks: Iterable[tuple[Parts, str]]) -> None:
        """Make the symbolic links, and set the modes and times of folders, innermost first.

        The links are made after everything else is written, so that nothing is written through them.
        """
        for parts, target in symlinks:
            os.symlink(target, parts[-1], dir_fd=self._enter(parts[:-1]))
        for parts in sorted(self._folders, key=len, reverse=True):
            entry = self._folders[parts]
            descriptor = self._enter(parts)
            os.fchmod(descriptor, (entry.mode & _PERMISSIONS) | _FOLDER_AT_LEAST)
            _set_time(descriptor, entry)

    def _close_folder(self) -> None:
        if self._open_folder != self._root:
            os.close(self._open_folder)
        self._open_folder, self._open_parts = self._root, ()

    def _enter(self, parts: Parts) -> int:
        """Return a descriptor of a folder, which is made if missing; valid until the next call."""
        if parts == self._open_parts:
            return self._open_folder
        self._close_folder()
        for part in parts:
            inner = self._open_or_make(part)
            if self._open_folder != self._root:
                os.close(self._open_folder)
            self._open_folder = inner
        self._open_parts = parts
        return self._open_folder

    def _open_or_make(self, part: str) -> int:
        try:
            return os.open(part, OPEN_FOLDER, dir_fd=self._open_folder)
        except FileNotFoundError:
            os.mkdir(part, 0o700, dir_fd=self._open_folder)
        descriptor = os.open(part, OPEN_FOLDER, dir_fd=self._open_folder)
        os.fchmod(descriptor, _FOLDER_MODE)
        return descriptor


def _set_time(descriptor: int, entry: Entry) -> None:
    moment = min(max(entry.mtime_ns, 0), _MAX_MTIME_NS)
    os.utime(descriptor, ns=(moment, moment))


@contextmanager
def fill_folder(destination: Path) -> Iterator[FolderWriter]:
    """Yield a writer that fills a folder, all of it or nothing.

    Files go to a hidden folder next to the destination (`.NAME.unpacking-…`), which is renamed to the destination at
    the end; only a crash leaves it behind. `destination`: an empty folder or a free name, in a folder that exists.
    """
    staging = Path(tempfile.mkdtemp(prefix=f".{destination.name}.unpacking-", dir=destination.parent))
    try:
        with FolderWriter(str(staging)) as writer:
            yield writer
        staging.chmod(0o755)
        move(staging, destination)
    except BaseException:
        with suppress(OSError):
            remove_tree(staging)
        raise
