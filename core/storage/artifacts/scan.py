"""Scans a folder that a job writes to: regular files and symbolic links, without following them or blocking."""

from __future__ import annotations

import os
import stat
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import NamedTuple

from core.storage.artifacts.paths import to_public_path
from core.system.untrusted_folders import MAX_DEPTH, OPEN_FOLDER, open_file_beneath

_MAX_REPORTED = 1_000
_NAMES_PER_FILE = 10
"""Directory entries examined at most, per file of the file limit: a job can make millions in a minute."""
_SPARSE_BYTES = 1 << 20
_MAX_EXTENTS = 10_000
_STAT_BLOCK = 512
PERMISSIONS = 0o777
_MAX_LINKS = 10_000
_KINDS = {
    stat.S_IFIFO: "a fifo is not a file",
    stat.S_IFSOCK: "a socket is not a file",
    stat.S_IFCHR: "a device is not a file",
    stat.S_IFBLK: "a device is not a file",
}


@dataclass(frozen=True)
class ArtifactLimits:
    max_files: int = 100_000
    max_bytes: int = 50 << 30  # bytes of one attempt
    # bytes of holes in files of one attempt: they take no disk, but are hashed, copied and sent
    max_hole_bytes: int = 1 << 30

    def capped(self, max_bytes: int | None) -> ArtifactLimits:
        """Return these limits with at most this many bytes; None keeps them as they are."""
        return self if max_bytes is None else replace(self, max_bytes=min(max_bytes, self.max_bytes))


class Skipped(NamedTuple):
    """A file that is not kept: its public path and the reason."""

    path: str
    why: str


class FolderStat(NamedTuple):
    """The metadata of a folder at the scan."""

    mode: int  # its permission bits
    mtime_ns: int


class FileStat(NamedTuple):
    """The metadata of a regular file at the scan; `links` is the inode's total link count."""

    inode: int
    links: int
    size: int
    mtime_ns: int
    ctime_ns: int
    mode: int  # its permission bits

    @classmethod
    def from_stat(cls, status: os.stat_result) -> FileStat:
        mode = status.st_mode & PERMISSIONS
        return cls(status.st_ino, status.st_nlink, status.st_size, status.st_mtime_ns, status.st_ctime_ns, mode)


class SkipList:
    """Collects skipped files; the number of listed entries is bounded."""

    def __init__(self) -> None:
        self._entries: list[Skipped] = []
        self._more = 0
        self.lost = False  # true if something that should have been kept was skipped, so that the result is partial

    def add(self, path: str, why: str, *, lost: bool = False) -> None:
        """Record one path, given as the operating system decoded it."""
        self.lost |= lost
        if len(self._entries) < _MAX_REPORTED:
            self._entries.append(Skipped(to_public_path(path), why))
        else:
            self._more += 1

    def entries(self) -> tuple[Skipped, ...]:
        """Return the recorded entries, sorted; if there were too many, a last entry counts the rest."""
        entries = sorted(self._entries)
        if self._more:
            entries.append(Skipped("…", f"{self._more:,} more were left out"))
        return tuple(entries)


@dataclass
class FolderScan:
    """Files and folders below one folder, by path as the operating system decoded it."""

    files: dict[str, FileStat] = field(default_factory=dict)
    folders: dict[str, FolderStat] = field(default_factory=dict)  # parents come before their children
    links: dict[str, str] = field(default_factory=dict)  # targets of symbolic links, as the job wrote them
    sparse: list[str] = field(default_factory=list)
    """Files that use far less disk than their size: they have holes, or the file system compresses."""


def scan(
    folder: int, skips: SkipList, *, max_files: int | None = None, ignored: frozenset[str] = frozenset()
) -> FolderScan:
    """Scan everything below an opened folder.

    Args:
        folder: Descriptor of the folder; stays open.
        skips: Gets what is not a regular file on the folder's own file system, and what exceeds a limit.
        max_files: Files past this number are only counted; the scan ends after ten times as many names.
    """
    walk = _Scanner(os.fstat(folder).st_dev, skips, max_files, ignored)
    walk.visit(folder, "", 0)
    if walk.cut:
        skips.add(
            "…",
            f"the folder has more than {_NAMES_PER_FILE * (max_files or 0):,} names; the rest is left out",
            lost=True,
        )
    if walk.uncounted:
        skips.add("…", f"{walk.uncounted:,} files are over the limit of {max_files:,} files", lost=True)
    return walk.found


def skip_outside_links(scan: FolderScan, linked: Iterable[int], skips: SkipList) -> None:
    """Remove files with a hard link elsewhere: their content need not be the job's own.

    Args:
        scan: The job's folder; loses such files.
        linked: Inodes of the expected hard links: one for each that the store has made.
    """
    names = Counter(seen.inode for seen in scan.files.values() if seen.links > 1)
    names.update(inode for inode in linked if inode in names)
    for path, seen in list(scan.files.items()):
        if seen.links > 1 and seen.links > names[seen.inode]:
            del scan.files[path]
            skips.add(path, "a hard link to a file outside the artifacts folder is not followed")


def apply_size_limit(scan: FolderScan, max_bytes: int, skips: SkipList) -> None:
    """Remove files, in order of path, that do not fit into the limit."""
    if sum(seen.size for seen in scan.files.values()) <= max_bytes:
        return
    room = max_bytes
    for path in sorted(scan.files):
        if scan.files[path].size <= room:
            room -= scan.files[path].size
        else:
            del scan.files[path]
            skips.add(path, f"over the limit of {max_bytes:,} bytes for all artifacts", lost=True)


def apply_hole_limit(scan: FolderScan, folder: int, max_hole_bytes: int, skips: SkipList) -> None:
    """Remove files, in order of path, whose holes do not fit into the limit.

    Args:
        scan: The job's folder; loses such files.
        folder: Its descriptor; stays open.
        max_hole_bytes: Bytes of all holes together.
    """
    room = max_hole_bytes
    for path in sorted(scan.sparse):
        holes = _hole_bytes(folder, path) if path in scan.files else 0
        if holes <= room:
            room -= holes
            continue
        size = scan.files.pop(path).size
        skips.add(
            path,
            f"a sparse file, {holes:,} of whose {size:,} bytes are holes; at most {max_hole_bytes:,} bytes of holes "
            "are kept. Pack it (tar --sparse) to keep it",
            lost=True,
        )


def _hole_bytes(folder: int, path: str) -> int:
    """Return the bytes of a file's holes as the file system reports them; 0 if it cannot be opened any more."""
    try:
        descriptor = open_file_beneath(folder, path.split("/"))
    except OSError:
        return 0
    try:
        size, data, end = os.fstat(descriptor).st_size, 0, 0
        for _ in range(_MAX_EXTENTS):  # past this many extents, the rest of the file counts as a hole
            start = os.lseek(descriptor, end, os.SEEK_DATA)
            end = os.lseek(descriptor, start, os.SEEK_HOLE)
            data += end - start
    except OSError:  # no more data up to its end
        return max(0, size - data)
    finally:
        os.close(descriptor)
    return max(0, size - data)


class _Scanner:
    def __init__(self, device: int, skips: SkipList, max_files: int | None, ignored: frozenset[str]) -> None:
        self._device = device
        self._skips = skips
        self._max_files = max_files
        self._ignored = ignored
        self._names_left = None if max_files is None else _NAMES_PER_FILE * max_files
        self.found = FolderScan()
        self.uncounted = 0
        self.cut = False  # true if names were left unexamined

    def visit(self, folder: int, prefix: str, depth: int) -> None:
        with os.scandir(folder) as entries:
            names = [entry.name for entry in islice(entries, self._names_left)]
            if self._names_left is not None:
                self._names_left -= len(names)
                self.cut = self.cut or (self._names_left == 0 and next(entries, None) is not None)
        for name in names:
            if name in self._ignored:
                continue
            path = prefix + name
            try:
                status = os.stat(name, dir_fd=folder, follow_symlinks=False)
            except FileNotFoundError:
                continue
            except OSError as error:
                self._skips.add(path, f"cannot be read: {error.strerror}", lost=True)
                continue
            self._classify(folder, name, path, status, depth)

    def _classify(self, folder: int, name: str, path: str, status: os.stat_result, depth: int) -> None:
        kind = stat.S_IFMT(status.st_mode)
        if kind == stat.S_IFLNK:
            self._read_link(folder, name, path)
        elif kind not in {stat.S_IFDIR, stat.S_IFREG}:
            self._skips.add(path, _KINDS.get(kind, "not a file"))
        elif status.st_dev != self._device:
            self._skips.add(path, "lies on another file system")
        elif kind == stat.S_IFDIR:
            self._descend(folder, name, path, depth)
        elif self._max_files is not None and len(self.found.files) >= self._max_files:
            self.uncounted += 1
        else:
            self.found.files[path] = FileStat.from_stat(status)
            if status.st_size - status.st_blocks * _STAT_BLOCK >= _SPARSE_BYTES:
                self.found.sparse.append(path)

    def _read_link(self, folder: int, name: str, path: str) -> None:
        if len(self.found.links) >= _MAX_LINKS:
            self._skips.add(path, f"over the limit of {_MAX_LINKS:,} symbolic links", lost=True)
            return
        with suppress(OSError):  # removed or replaced meanwhile
            self.found.links[path] = os.readlink(name, dir_fd=folder)

    def _descend(self, parent: int, name: str, path: str, depth: int) -> None:
        if depth >= MAX_DEPTH:
            self._skips.add(path, f"deeper than {MAX_DEPTH} folders", lost=True)
            return
        try:
            folder = os.open(name, OPEN_FOLDER, dir_fd=parent)
        except FileNotFoundError:
            return
        except OSError as error:  # also ELOOP and ENOTDIR: replaced by a link meanwhile
            self._skips.add(path, f"cannot be opened as a folder: {error.strerror}", lost=True)
            return
        try:
            status = os.fstat(folder)
            if status.st_dev == self._device:
                self.found.folders[path] = FolderStat(status.st_mode & PERMISSIONS, status.st_mtime_ns)
                self.visit(folder, path + "/", depth + 1)
            else:
                self._skips.add(path, "lies on another file system")
        finally:
            os.close(folder)
