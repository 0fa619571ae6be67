"""A project's storage as clients read and change it, without following the links that jobs leave there.

Paths are public paths, as of artifacts. The folder `datasets` is the one that all projects read.
"""

import errno
import hashlib
import heapq
import os
import re
import stat
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from itertools import groupby, islice
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

from core.errors import ArtifactNotFound, SpecInvalid, StorageClosed, StorageFull, StoredFileNotFound, StoreUnavailable
from core.ids import new_id
from core.storage.artifacts.paths import parse_public_path, to_public_path
from core.storage.artifacts.store import OpenArtifact
from core.storage.shared.folders import DATASETS, SharedStorage
from core.storage.shared.uploaded_files import Uploaded
from core.system.filesystem import FULL_DISK_ERRNOS, write_all
from core.system.untrusted_folders import (
    MAX_DEPTH,
    NOT_A_FOLDER,
    open_file_beneath,
    opened_beneath,
    opened_folder,
    remove_tree,
)

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_MS = 1_000_000
_DIGEST = "user.gradient.sha256"
"""Attribute of a stored file: its size and time of change, the digest of its content then, and `copy` of a copy."""
_COPY = "copy"
_REMOVAL_SECONDS = 2.0  # of one request: jobs may go on to write what it deletes
_FILE_MODE, _FOLDER_MODE = 0o666, 0o777
"""Modes of uploads: jobs may run as other users than the service, and the project's folder is closed to all others."""


@dataclass(frozen=True, slots=True)
class StoredEntry:
    path: str
    kind: str  # `file`, `folder`, or `other`: a link, fifo, socket or device, which cannot be read
    size: int | None  # bytes of a file; None otherwise
    mtime_ms: int  # time of its last change, in Unix milliseconds
    sha256: str | None = None  # digest of a file that a client stored and nobody has changed since; None: not known
    is_copy: bool = False  # of a file that is stored elsewhere
    executable: bool = False  # a file that its owner may execute; not known of one in a bucket

    @classmethod
    def from_stat(
        cls, path: str, status: os.stat_result, sha256: str | None = None, *, is_copy: bool = False
    ) -> "StoredEntry":
        kind = {stat.S_IFREG: "file", stat.S_IFDIR: "folder"}.get(stat.S_IFMT(status.st_mode), "other")
        size, executable = (status.st_size, bool(status.st_mode & stat.S_IXUSR)) if kind == "file" else (None, False)
        return cls(path, kind, size, status.st_mtime_ns // _MS, sha256, is_copy, executable)

    @classmethod
    def of_uploaded(cls, file: Uploaded) -> "StoredEntry":
        return cls(file.path, "file", file.size, file.mtime_ms, file.sha256)


class EntryPage(NamedTuple):
    """Entries in order of path; `next` is `after` of the next page, None on the last one."""

    entries: list[StoredEntry]
    next: str | None


class ProjectFiles:
    """Its folder on this host and, where there is a bucket, the files that clients stored there.

    What a job wrote takes the place of an uploaded file of the same path.
    """

    def __init__(self, storage: SharedStorage, project_id: str) -> None:
        self._storage = storage
        self._uploaded = storage.uploaded
        self._project_id = project_id
        self._folder = storage.of_project(project_id)

    def page(self, path: str, *, recursive: bool = False, after: str | None = None, limit: int = 1000) -> EntryPage:
        """Return the entries of a folder, or the one of a file; an empty page if nothing was stored yet.

        Args:
            path: The folder's or file's path; empty: the whole storage.
            recursive: Include what is in its folders, except in the data sets of all projects.
        """
        parts = _parse(path) if path else []
        seen = after.split("/")[len(parts) :] if after and _parse(after) else []
        here = self._entries(parts, seen, recursive=recursive)
        entries = here if self._uploaded is None else self._merged(here, path, after, recursive=recursive)
        with _translated(path), closing(entries):
            first = list(islice(entries, limit + 1))
        return EntryPage(first[:limit], first[limit - 1].path if len(first) > limit else None)

    def keeps_digests(self) -> bool:
        """Return whether the file system has the extended attributes in which digests of uploads are noted."""
        self._storage.incoming.mkdir(parents=True, exist_ok=True, mode=0o700)
        try:
            os.setxattr(self._storage.incoming, _DIGEST, b"")
        except OSError as error:
            return error.errno != errno.ENOTSUP
        return True

    def count_bytes(self) -> int:
        """Return the bytes of what jobs wrote on this host and of what clients stored, copies left out."""
        uploaded = 0 if self._uploaded is None else self._uploaded.count(self._project_id)[1]
        with _translated(""), closing(self._entries([], [], recursive=True)) as entries:
            return uploaded + sum(entry.size or 0 for entry in entries if not entry.is_copy)

    def open(self, path: str) -> OpenArtifact:
        uploaded = self._find_uploaded(path)
        if uploaded is None or self._uploaded is None:
            return self._open_here(path)
        file = self._uploaded.open(uploaded)
        return OpenArtifact(file, uploaded.size, None, uploaded.mtime_ms)

    def sign(self, path: str) -> str | None:
        """Return a URL of the bucket to read a file from; None: it is not there, or the account cannot sign."""
        uploaded = self._find_uploaded(path)
        return None if uploaded is None or self._uploaded is None else self._uploaded.sign(uploaded)

    def _find_uploaded(self, path: str) -> Uploaded | None:
        """Find a file in the bucket, unless there is another one of its path here."""
        parts = _parse(path)
        entry = None if self._uploaded is None else self._uploaded.find(self._project_id, path)
        if entry is not None:
            with (
                suppress(StoredFileNotFound),
                _translated(path),
                opened_folder(self._folder) as folder,
                opened_beneath(folder, parts[:-1]) as parent,
            ):
                return entry if _entry(parent, parts[-1], path).sha256 else None
        return entry

    def _open_here(self, path: str) -> OpenArtifact:
        root, below = self._locate(_parse(path))
        if not below:
            raise _not_a_file(path)
        with _translated(path), opened_folder(root) as folder:
            descriptor = open_file_beneath(folder, below)
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            os.close(descriptor)
            raise _not_a_file(path)
        return OpenArtifact(os.fdopen(descriptor, "rb"), status.st_size, None, status.st_mtime_ns // _MS)

    def receive(self, path: str) -> "Upload":
        """Begin to store a file, which jobs see once it is complete."""
        parts = self._writable(path)
        if any(map(_CONTROL.search, parts)):
            raise SpecInvalid(f"path: {path[:200]!r} has a control character. Rename the file.", field="path")
        if self._uploaded is not None:
            self._uploaded.check_path(self._project_id, path)
        with _translated(path):
            self._storage.incoming.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            with opened_folder(self._folder) as folder, _opened_parent(folder, parts, path):
                return Upload(self._storage.incoming / new_id("upload-"), self._folder, path, parts, self._send)

    def remove(self, path: str, *, recursive: bool = False) -> None:
        """Delete a file or an empty folder; with `recursive` any folder. A job that reads a file keeps it."""
        *parents, name = self._writable(path)
        if self._uploaded is not None and self._uploaded.remove(self._project_id, path, recursive=recursive):
            with suppress(StoredFileNotFound):
                self._remove_here(path, parents, name, recursive=recursive)
        else:
            self._remove_here(path, parents, name, recursive=recursive)

    def _send(self, path: str, file: Path, sha256: str, mtime_ms: int | None) -> StoredEntry | None:
        """Put an upload into the bucket and return its entry; None: there is no bucket."""
        if self._uploaded is None:
            return None
        mtime_ms = time.time_ns() // _MS if mtime_ms is None else mtime_ms
        size = file.stat().st_size
        with file.open("rb") as content:
            self._uploaded.store(self._project_id, path, content, size=size, sha256=sha256, mtime_ms=mtime_ms)
        return StoredEntry(path, "file", size, mtime_ms, sha256)

    def _remove_here(self, path: str, parents: list[str], name: str, *, recursive: bool) -> None:
        with _translated(path), opened_folder(self._folder) as folder, opened_beneath(folder, parents) as parent:
            if not stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode):
                os.unlink(name, dir_fd=parent)
                return
            if not recursive:
                os.rmdir(name, dir_fd=parent)
                return
            self._storage.incoming.mkdir(parents=True, exist_ok=True, mode=0o700)
            aside = self._storage.incoming / new_id("removed-")
            os.rename(name, aside, src_dir_fd=parent)  # gone at once, however long its deletion takes
            with suppress(OSError):  # the worker deletes what is left
                remove_tree(aside, _REMOVAL_SECONDS)

    def _entries(self, parts: list[str], after: list[str], *, recursive: bool) -> Generator[StoredEntry, None, None]:
        root, below = self._locate(parts)
        public = to_public_path("/".join(parts))
        shared = None
        if not parts and self._storage.datasets.is_dir():
            shared = StoredEntry.from_stat(DATASETS, self._storage.datasets.stat())
        if parts in ([], [DATASETS]) and not root.is_dir():  # nothing was stored yet
            yield from [shared] if shared and not after else []
            return
        with opened_folder(root) as top:
            if below:
                with opened_beneath(top, below[:-1]) as parent:
                    entry = _entry(parent, below[-1], public)
                if entry.kind != "folder":
                    yield entry
                    return
            with opened_beneath(top, below) as folder:
                yield from _walk(folder, public, after, recursive=recursive, shared=shared)

    def _merged(
        self, here: Iterator[StoredEntry], path: str, after: str | None, *, recursive: bool
    ) -> Generator[StoredEntry, None, None]:
        """Yield entries of this host and of the bucket, in order of path."""
        missing: list[OSError] = []

        def present() -> Iterator[StoredEntry]:
            try:
                yield from here
            except OSError as error:
                if error.errno not in NOT_A_FOLDER:
                    raise
                missing.append(error)

        stored = self._stored(path, after, recursive=recursive)
        merged = heapq.merge(present(), stored, key=lambda entry: entry.path.split("/"))
        passed = after is not None
        for _, same in groupby(merged, key=attrgetter("path")):
            entry, *others = same
            yield others[-1] if others and entry.sha256 else entry
            passed = True
        if missing and not passed:
            raise missing[0]

    def _stored(self, path: str, after: str | None, *, recursive: bool) -> Iterator[StoredEntry]:
        """Yield what is in the bucket, with the folders that lead there, in order of path."""
        if self._uploaded is None:
            return
        if path and not after and (file := self._uploaded.find(self._project_id, path)):
            yield StoredEntry.of_uploaded(file)
            return
        level = len(path.split("/")) + 1 if path else 1
        last = after.split("/") if after else []
        for file in self._uploaded.walk(self._project_id, path, after, level=None if recursive else level):
            parts = file.path.split("/")
            for depth in range(level, len(parts)):
                if parts[:depth] > last:
                    last = parts[:depth]
                    yield StoredEntry("/".join(last), "folder", None, file.mtime_ms)
                if not recursive:
                    break
            if recursive or len(parts) == level:
                yield StoredEntry.of_uploaded(file)

    def _locate(self, parts: list[str]) -> tuple[Path, list[str]]:
        if parts[:1] == [DATASETS]:
            return self._storage.datasets, parts[1:]
        return self._folder, parts

    def _writable(self, path: str) -> list[str]:
        parts = _parse(path)
        if parts[0] == DATASETS:
            raise SpecInvalid(
                f"path: {DATASETS}/ has the data sets of all projects, which only an administrator can change. "
                "Choose another folder.",
                field="path",
            )
        return parts


class Upload:
    def __init__(
        self,
        temporary: Path,
        root: Path,
        path: str,
        parts: list[str],
        send: Callable[[str, Path, str, int | None], StoredEntry | None],  # puts it where it is kept, if not here
    ) -> None:
        self.size = 0  # bytes so far
        self._temporary = temporary
        self._root = root
        self._path = path
        self._parts = parts
        self._send = send
        self._sha256 = hashlib.sha256()
        self._descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)

    def write(self, data: bytes) -> None:
        """Append bytes. Raises `StorageFull`: the disk is full."""
        with _translated(self._path):
            write_all(self._descriptor, data)
        self._sha256.update(data)
        self.size += len(data)

    def commit(
        self, *, sha256: str | None, mtime_ms: int | None, is_copy: bool = False, executable: bool = False
    ) -> StoredEntry:
        """Give the file its name, replacing another file there; return its entry.

        Where it is kept in a bucket, it only takes the place of a file that is there.

        Args:
            sha256: The digest that the sender computed, if it sent one.
            mtime_ms: Time of the file's last change in Unix milliseconds; None: now.
            is_copy: It was fetched from where it is stored.
        """
        if sha256 not in (None, digest := self._sha256.hexdigest()):
            raise SpecInvalid(
                f"sha256: the upload was damaged in transit: its sha256 is {digest}, not {sha256}. Send it again.",
                field="sha256",
            )
        stored = self._send(self._path, self._temporary, digest, mtime_ms)
        with _translated(self._path):
            os.fchmod(self._descriptor, _FOLDER_MODE if executable else _FILE_MODE)
            os.fsync(self._descriptor)
            with opened_folder(self._root) as root, _opened_parent(root, self._parts, self._path) as parent:
                if stored is not None and not os.access(self._parts[-1], os.F_OK, dir_fd=parent, follow_symlinks=False):
                    return stored
                os.rename(self._temporary, self._parts[-1], dst_dir_fd=parent)
                os.fsync(parent)
            if mtime_ms is not None:  # under its name: `sweep_incoming` would take it for the rest of an old upload
                os.utime(self._descriptor, ns=(mtime_ms * _MS, mtime_ms * _MS))
            status = os.fstat(self._descriptor)
            with suppress(OSError):  # not every file system has attributes
                copy = _COPY if is_copy or stored else ""
                os.setxattr(self._descriptor, _DIGEST, f"{_version(status)} {digest} {copy}".encode())
            return stored or StoredEntry.from_stat(self._path, status, digest)

    def close(self) -> None:
        """Release the file; one that was not committed is deleted."""
        os.close(self._descriptor)
        self._temporary.unlink(missing_ok=True)


def _walk(
    folder: int, path: str, after: list[str], *, recursive: bool, shared: StoredEntry | None = None
) -> Iterator[StoredEntry]:
    """Yield the entries of a folder in order of path.

    Args:
        folder: Its descriptor.
        after: The names below the folder that lead to the last entry of the previous page.
        shared: The folder of the data sets, in place of what is there under its name.
    """
    names = {to_public_path(name): name for name in os.listdir(folder)} | ({shared.path: ""} if shared else {})
    for public, name in sorted(names.items()):
        if after and public < after[0]:
            continue
        try:
            entry = _entry(folder, name, f"{path}/{public}" if path else public) if name else shared
        except FileNotFoundError:
            continue  # a job has just deleted it
        here = bool(after) and public == after[0]
        if entry and not here:
            yield entry
        if recursive and name and entry and entry.kind == "folder" and entry.path.count("/") < MAX_DEPTH:
            with opened_beneath(folder, [name]) as deeper:
                yield from _walk(deeper, entry.path, after[1:] if here else [], recursive=True)


def _entry(folder: int, name: str, path: str) -> StoredEntry:
    status = os.stat(name, dir_fd=folder, follow_symlinks=False)
    sha256, is_copy = _stored_digest(folder, name, status)
    return StoredEntry.from_stat(path, status, sha256, is_copy=is_copy)


def _version(status: os.stat_result) -> str:
    return f"{status.st_size:x}-{status.st_mtime_ns:x}"


def _stored_digest(folder: int, name: str, status: os.stat_result) -> tuple[str | None, bool]:
    """Return the digest that was noted with a file, if it is that of its content now, and whether it is a copy."""
    if not stat.S_ISREG(status.st_mode):
        return None, False
    with suppress(OSError, ValueError):
        text = os.getxattr(f"/proc/self/fd/{folder}/{name}", _DIGEST, follow_symlinks=False).decode()
        version, sha256, *copy = text.split()
        if version == _version(status) and _SHA256.fullmatch(sha256):
            return sha256, copy == [_COPY]
    return None, False


@contextmanager
def _opened_parent(root: int, parts: list[str], path: str) -> Iterator[int]:
    """Open the folder of a file that is to be stored, created if missing; yields its descriptor."""
    try:
        with opened_beneath(root, parts[:-1], create=True, mode=_FOLDER_MODE) as parent:
            name = parts[-1]
            with suppress(FileNotFoundError):
                if stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode):
                    raise SpecInvalid(f"path: {path[:200]!r} is a folder. Name a file in it.", field="path")
            yield parent
    except OSError as error:
        if error.errno not in NOT_A_FOLDER:
            raise
        raise SpecInvalid(
            f"path: a part of {path[:200]!r} is a file or a link, not a folder. Choose another path.", field="path"
        ) from None


def _parse(path: str) -> list[str]:
    try:
        return parse_public_path(path)
    except ArtifactNotFound:
        raise SpecInvalid(
            f"path: {path[:200]!r} is not a path in the storage. Write one such as data/train.npz.", field="path"
        ) from None


def _not_a_file(path: str) -> StoredFileNotFound:
    return StoredFileNotFound(f"{path[:200]!r} in the storage is not a file. `gradient-cli storage ls` lists it.")


@contextmanager
def _translated(path: str) -> Iterator[None]:
    """Raise the errors of the operating system as errors for the client."""
    try:
        yield
    except PermissionError:
        raise StorageClosed(
            f"The service's user ({os.geteuid()}) has no access to {path[:200]!r} in this project's storage, which "
            "belongs to the jobs' user. Read or change it in a job, or have an administrator run the service as "
            "the worker's user (docs/storage.md)."
        ) from None
    except OSError as error:
        if error.errno in NOT_A_FOLDER:
            raise StoredFileNotFound(
                f"The storage has no {path[:200]!r}. `gradient-cli storage ls` lists its files."
            ) from None
        if error.errno == errno.ENOTEMPTY:
            raise SpecInvalid(
                f"path: the folder {path[:200]!r} is not empty. Use recursive to delete it with its contents."
            ) from None
        if error.errno in FULL_DISK_ERRNOS:
            raise StorageFull(f"The disk is full; {path[:200]!r} was not stored. Free space, then try again.") from None
        raise StoreUnavailable(f"The storage does not answer: {error.strerror}. Try again later.") from error
