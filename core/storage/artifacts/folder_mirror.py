"""Mirrors a job's folder into the store, by hard link where that works, else by copy.

The final sync is repeated while files change.
"""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path

from core.jobs.spec.container_options import ARTIFACTS
from core.storage.artifacts.links import follow_links
from core.storage.artifacts.manifests import MANIFEST
from core.storage.artifacts.scan import (
    PERMISSIONS,
    ArtifactLimits,
    FileStat,
    FolderScan,
    FolderStat,
    SkipList,
    apply_hole_limit,
    apply_size_limit,
    scan,
    skip_outside_links,
)
from core.system.filesystem import LINK_REFUSED, write_all
from core.system.untrusted_folders import (
    NOT_A_FOLDER,
    OPEN_FILE,
    OPEN_FOLDER,
    open_beneath,
    opened_beneath,
    opened_folder,
    remove_tree,
)

INCOMING = "incoming"
"""Start of the names of folders for files on their way in; one that is left belongs to a process that was killed."""
_TEMPORARY = "new"
_COPY_BLOCK = 1 << 20
_FINAL_PASSES = 3
_MAX_FOLDERS = 10_000
SETTLED_NS = 2_000_000_000  # a copy may have missed a change that is this close to its end
_MICROSECOND_NS, _SECOND_NS = 1_000, 1_000_000_000

Stopped = Callable[[], bool]  # polled during long operations; True means stop
STOPPED = "collection was stopped before it was stored"
UNSETTLED = "changed or vanished while it was being stored"


def never() -> bool:
    """Return False: the default that never stops."""
    return False


class _Stopped(Exception):
    """Copying was stopped."""


class FolderMirror:
    """One pass over one attempt's folder.

    `incoming`: descriptor of an empty folder on the store's file system. A file is made there, checked, and only then
    renamed into the store: if the job swapped the name, the other file never becomes visible there.
    """

    def __init__(
        self,
        source: int,  # descriptor of the job's folder
        store: int,  # descriptor of the folder that becomes its mirror
        incoming: int,
        skips: SkipList,  # gets what cannot be read, and what is not copied because of a stop
        stopped: Stopped = never,  # returns True once nothing more is to be copied
        *,
        link: bool = True,  # link files where that works; else copy all
    ) -> None:
        self._stopped = stopped
        self._link = link
        self._source = source
        self._store = store
        self._incoming = incoming
        self._skips = skips
        self._same_device = os.fstat(source).st_dev == os.fstat(store).st_dev
        self.changed = False  # true if the pass changed the store
        self.unsettled: list[str] = []
        """Files that changed or vanished during the pass; another pass may find them unchanged."""

    def run(self, wanted: FolderScan, stored: FolderScan, others: Collection[str] = ()) -> None:
        """Remove files that are not wanted (any more), then link or copy those that are new or changed."""
        self._remove({*wanted.files, *others}, stored)
        pending: dict[str, list[str]] = defaultdict(list)
        for path, seen in wanted.files.items():
            old = stored.files.get(path)
            if not (old and self._same_device and old.inode == seen.inode):
                parent, _, name = path.rpartition("/")
                pending[parent].append(name)
        for parent, names in pending.items():
            self._update_folder(parent, names, wanted, stored)

    def add(self, links: Mapping[str, str], files: Mapping[str, FileStat], stored: FolderScan) -> None:
        """Give files further names.

        `stored`: files and folders of the store, in which a name is kept if it is the same file. Raises `OSError`: the
        store cannot be written.
        """
        for path, real in links.items():
            (*above, name), (*parents, new) = real.split("/"), path.split("/")
            seen, old = files.get(real), stored.files.get(path)
            if seen is None:
                self.unsettled.append(path)
            elif not (old and self._same_device and old.inode == seen.inode):
                with (
                    opened_beneath(self._source, above) as source,
                    opened_beneath(self._store, parents, create=True) as folder,
                ):
                    if self._link_or_copy(source, name, path, seen, old):
                        self.changed = True
                        os.rename(_TEMPORARY, new, src_dir_fd=self._incoming, dst_dir_fd=folder)

    def _remove(self, wanted: set[str], stored: FolderScan) -> None:
        for path in stored.files.keys() - wanted:
            self.changed = True
            parent, _, name = path.rpartition("/")
            with opened_beneath(self._store, _parts(parent)) as folder:
                os.unlink(name, dir_fd=folder)
        kept: set[str] = set()
        for path in wanted:
            parent = path.rpartition("/")[0]
            while parent and parent not in kept:
                kept.add(parent)
                parent = parent.rpartition("/")[0]
        for path in reversed(list(stored.folders)):
            if path not in kept:
                parent, _, name = path.rpartition("/")
                with opened_beneath(self._store, _parts(parent)) as folder:
                    os.rmdir(name, dir_fd=folder)

    def _update_folder(self, parent: str, names: list[str], wanted: FolderScan, stored: FolderScan) -> None:
        prefix = f"{parent}/" if parent else ""
        try:
            source = open_beneath(self._source, _parts(parent))
        except OSError as error:
            if error.errno not in NOT_A_FOLDER:
                raise
            self.unsettled += [prefix + name for name in names]
            return
        try:
            with opened_beneath(self._store, _parts(parent), create=True) as folder:
                for name in names:
                    path = prefix + name
                    if self._link_or_copy(source, name, path, wanted.files[path], stored.files.get(path)):
                        self.changed = True
                        os.rename(_TEMPORARY, name, src_dir_fd=self._incoming, dst_dir_fd=folder)
        finally:
            os.close(source)

    def _link_or_copy(self, source: int, name: str, path: str, seen: FileStat, old: FileStat | None) -> bool:
        """Make the file in `incoming`; False if there is nothing to rename into the store."""
        if not self._link:
            return self._copy(source, name, path, seen)
        try:
            self._make_link(source, name)
        except FileNotFoundError:
            self.unsettled.append(path)
            return False
        except OSError as error:
            if error.errno not in LINK_REFUSED:
                raise
            if old and _is_copy(old, seen):
                return False
            return self._copy(source, name, path, seen)
        status = os.stat(_TEMPORARY, dir_fd=self._incoming, follow_symlinks=False)
        if stat.S_ISREG(status.st_mode) and status.st_ino == seen.inode:
            return True
        os.unlink(_TEMPORARY, dir_fd=self._incoming)
        self.unsettled.append(path)
        return False

    def _make_link(self, source: int, name: str) -> None:
        link = partial(os.link, name, _TEMPORARY, src_dir_fd=source, dst_dir_fd=self._incoming, follow_symlinks=False)
        try:
            link()
        except FileExistsError:  # another process had stored the last file meanwhile: to rename it did nothing
            os.unlink(_TEMPORARY, dir_fd=self._incoming)
            link()

    def _copy(self, source: int, name: str, path: str, seen: FileStat) -> bool:
        try:
            reading = os.open(name, OPEN_FILE, dir_fd=source)
        except (FileNotFoundError, IsADirectoryError):
            self.unsettled.append(path)
            return False
        except OSError as error:
            if error.errno in NOT_A_FOLDER or error.errno == errno.ENXIO:
                self.unsettled.append(path)
            else:
                self._skips.add(path, f"cannot be read: {error.strerror}", lost=True)
            return False
        try:
            before = os.fstat(reading)
            if not stat.S_ISREG(before.st_mode) or before.st_ino != seen.inode:
                self.unsettled.append(path)
                return False
            self._write_copy(reading, before)
        except _Stopped:
            os.unlink(_TEMPORARY, dir_fd=self._incoming)
            self._skips.add(path, STOPPED, lost=True)
            return False
        else:
            if FileStat.from_stat(os.fstat(reading)) != FileStat.from_stat(before):
                # Kept nevertheless: an inconsistent copy of a file that is written all the time is better than none.
                self.unsettled.append(path)
        finally:
            os.close(reading)
        return True

    def _write_copy(self, reading: int, status: os.stat_result) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        copy = os.open(_TEMPORARY, flags, 0o600, dir_fd=self._incoming)
        block = memoryview(bytearray(_COPY_BLOCK))
        try:
            left = status.st_size  # the file may grow faster than it is copied
            while left and (count := os.readv(reading, [block[: min(left, _COPY_BLOCK)]])):
                if self._stopped():
                    raise _Stopped
                write_all(copy, block[:count])
                left -= count
            os.fchmod(copy, status.st_mode & PERMISSIONS | stat.S_IRUSR)
            os.utime(copy, ns=(status.st_atime_ns, status.st_mtime_ns))
        finally:
            os.close(copy)


def _is_copy(old: FileStat, seen: FileStat) -> bool:
    """Check whether a stored file is a copy of a file as it is now.

    The time of the last change alone would not do: the two file systems' clocks differ, and clocks are set back.
    """
    # Not every file system stores a time to the nanosecond; some have seconds only.
    unit = _MICROSECOND_NS if old.mtime_ns % _SECOND_NS else _SECOND_NS
    same = old.size == seen.size and old.mtime_ns // unit == seen.mtime_ns // unit
    return same and seen.ctime_ns + SETTLED_NS < old.ctime_ns


def _parts(path: str) -> list[str]:
    return path.split("/") if path else []


def mirror_folder(
    directory: Path, source: Path, limits: ArtifactLimits, *, final: bool, stopped: Stopped = never
) -> tuple[FolderScan, SkipList]:
    """Make `directory/files` a mirror of a job's folder.

    Returns the files in the store, and those left out. Raises `OSError`: the store cannot be written, or the attempt
    was closed or its folder removed meanwhile.

    Args:
        source: The folder the job writes to; nothing in it is trusted.
        final: The job has ended: changing files are read again, and reported if they keep changing.
        stopped: Returns True once nothing more is to be copied; files not copied by then are reported.
    """
    (directory / "files").mkdir(parents=True, exist_ok=True)
    with opened_folder(directory / "files") as store, opened_incoming(directory) as incoming:
        return _mirror_until_stable(directory, source, store, incoming, limits, final=final, stopped=stopped)


@contextmanager
def opened_incoming(directory: Path) -> Iterator[int]:
    """Create an empty folder for files on their way into an attempt's directory; yields its descriptor."""
    # Of this process only: another one, that was frozen, may be about to remove its own.
    incoming = Path(tempfile.mkdtemp(prefix=f"{INCOMING}.", dir=directory))
    try:
        with opened_folder(incoming) as arriving:
            yield arriving
    finally:
        with suppress(OSError):
            remove_tree(incoming)


def _mirror_until_stable(
    directory: Path, source: Path, store: int, incoming: int, limits: ArtifactLimits, *, final: bool, stopped: Stopped
) -> tuple[FolderScan, SkipList]:
    try:
        origin = os.open(source, OPEN_FOLDER)
    except OSError as error:
        if error.errno not in NOT_A_FOLDER:
            raise
        skips = SkipList()
        skips.add(".", "the artifacts folder no longer exists; files stored before are kept", lost=True)
        return replace(scan(store, SkipList()), folders={}), skips
    try:
        for _ in range(_FINAL_PASSES if final else 1):
            names = (ARTIFACTS, str(source))
            stored, skips, unsettled = _mirror_once(directory, origin, names, store, incoming, limits, stopped)
            if not unsettled:
                break
    finally:
        os.close(origin)
    if final:
        for path in unsettled:
            skips.add(path, UNSETTLED, lost=True)
    return stored, skips


def _linked_inodes(directory: Path, stored: FolderScan) -> list[int]:
    """Return the inode of each link that syncs have made, also on its way in when its worker was killed or frozen."""
    inodes = [seen.inode for seen in stored.files.values()]
    for link in directory.glob(f"{INCOMING}*/{_TEMPORARY}"):
        with suppress(FileNotFoundError):
            inodes.append(link.lstat().st_ino)
    return inodes


def _mirror_once(
    directory: Path,
    source: int,
    names: Sequence[str],
    store: int,
    incoming: int,
    limits: ArtifactLimits,
    stopped: Stopped,
) -> tuple[FolderScan, SkipList, list[str]]:
    skips = SkipList()
    stored = scan(store, SkipList())
    wanted = scan(source, skips, max_files=limits.max_files)
    # To scan a removed folder finds no files, and is no error. Another worker removes it once it has the manifest.
    if (directory / MANIFEST).exists() or not os.fstat(source).st_nlink:
        raise OSError(errno.ESTALE, "the attempt was closed, or its folder removed, meanwhile")
    same_device = os.fstat(source).st_dev == os.fstat(store).st_dev
    skip_outside_links(wanted, _linked_inodes(directory, stored) if same_device else [], skips)
    apply_hole_limit(wanted, source, limits.max_hole_bytes, skips)
    apply_size_limit(wanted, limits.max_bytes, skips)
    linked = follow_links(wanted, names, skips, limits)
    mirror = FolderMirror(source, store, incoming, skips, stopped)
    mirror.run(wanted, stored, linked)
    stored = scan(store, SkipList()) if mirror.changed else stored
    unsettled = mirror.unsettled
    if linked:
        # Within the store: there the job cannot change them, and a copy is made once.
        adding = FolderMirror(store, store, incoming, skips, stopped)
        adding.add(linked, stored.files, stored)
        stored = scan(store, SkipList()) if adding.changed else stored
        unsettled = [*unsettled, *adding.unsettled]
    return replace(stored, folders=_kept_folders(wanted, skips)), skips, unsettled


def _kept_folders(wanted: FolderScan, skips: SkipList) -> dict[str, FolderStat]:
    """Return the folders to list. The store has those of files alone, and not as the job made them."""
    if over := max(0, len(wanted.folders) - _MAX_FOLDERS):
        why = f"{over:,} folders exceed the limit of {_MAX_FOLDERS:,}: their times and permissions are not kept"
        skips.add("…", f"{why}, nor those that are empty", lost=True)
    return dict(islice(wanted.folders.items(), _MAX_FOLDERS))
