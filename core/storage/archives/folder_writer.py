"""Writes an archive's entries below one folder, and nowhere else.

Every folder is opened from its parent's descriptor without following links, and every file is created, never opened:
even a folder swapped for a link meanwhile cannot lead outside.
"""

import os
from collections.abc import Iterable
from typing import BinaryIO, Self

from core.storage.archives.tree import ArchiveEntry, Parts
from core.system.filesystem import write_all
from core.system.trees import OPEN_FOLDER

_FOLDER_MODE, _FILE_MODE = 0o755, 0o644
_FOLDER_AT_LEAST, _FILE_AT_LEAST = 0o700, 0o400  # the owner must be able to read and delete what was unpacked
_PERMISSIONS = 0o777
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
# File systems disagree on times outside this range, and archives can hold any value.
_MAX_MTIME_NS = (2**32 - 1) * 10**9


class FolderWriter:
    def __init__(self, root: str) -> None:
        self._root = os.open(root, OPEN_FOLDER)
        # Entries come folder by folder, so the last one's descriptor is nearly always the next one's.
        self._open_parts: Parts = ()
        self._open_folder = self._root
        self._folders: dict[Parts, ArchiveEntry] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._close_folder()
        os.close(self._root)

    def folder(self, parts: Parts, entry: ArchiveEntry) -> None:
        """Make a folder; `finish` sets its mode and time, because files are still written to it."""
        self._enter(parts)
        self._folders[parts] = entry

    def file(self, parts: Parts, entry: ArchiveEntry) -> None:
        descriptor = os.open(parts[-1], _CREATE, 0o600, dir_fd=self._enter(parts[:-1]))
        try:
            for chunk in entry.chunks:
                write_all(descriptor, chunk)
            os.fchmod(descriptor, _mode(entry, _FILE_MODE) | _FILE_AT_LEAST)
            _set_time(descriptor, entry)
        finally:
            os.close(descriptor)

    def hard_link(self, parts: Parts, target: Parts) -> None:
        """Give a file that was written earlier a second name."""
        source = os.dup(self._enter(target[:-1]))
        try:
            folder = self._enter(parts[:-1])
            os.link(target[-1], parts[-1], src_dir_fd=source, dst_dir_fd=folder, follow_symlinks=False)
        finally:
            os.close(source)

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
            os.fchmod(descriptor, _mode(entry, _FOLDER_MODE) | _FOLDER_AT_LEAST)
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


def _mode(entry: ArchiveEntry, default: int) -> int:
    return default if entry.mode is None else entry.mode & _PERMISSIONS


def _set_time(descriptor: int, entry: ArchiveEntry) -> None:
    if entry.mtime_ns is not None:
        moment = min(max(entry.mtime_ns, 0), _MAX_MTIME_NS)
        os.utime(descriptor, ns=(moment, moment))
