"""Storage of job artifacts: synced while the job runs, closed with a manifest at its end.

Layout of the directory store, below its root: `<first 3 of the id>/<job id>/<attempt>/` with `files/` (the
mirror), `incoming.…/` (files on their way in), `listing.jsonl` (after each sync) and `manifest.jsonl` (written
once, last). On one file system the files are hard links to the job's own, not copies; at the end they become the
worker's.
"""

import fcntl
import os
import stat
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Protocol

from core.ids import checked_job_id
from core.storage.artifacts.folder_mirror import INCOMING, Stopped, mirror_folder, never
from core.storage.artifacts.hashing import hash_files
from core.storage.artifacts.manifests import (
    LISTING,
    MANIFEST,
    ArtifactFile,
    ArtifactFolder,
    ArtifactsState,
    Manifest,
    ManifestReader,
    reduced,
    write_manifest,
)
from core.storage.artifacts.paths import not_found, parse_public_path, to_public_path
from core.storage.artifacts.received import ReceivedArtifacts
from core.storage.artifacts.scan import ArtifactLimits, FolderScan, SkipList, Skipped
from core.system.untrusted_folders import (
    NOT_A_FOLDER,
    OPEN_FILE,
    open_beneath,
    opened_beneath,
    opened_folder,
    remove_tree,
)

__all__ = [
    "ArtifactFile",
    "ArtifactFolder",
    "ArtifactLimits",
    "ArtifactPage",
    "ArtifactStore",
    "Closing",
    "DirectoryStore",
    "Manifest",
    "OpenArtifact",
    "Skipped",
    "SyncResult",
]


@dataclass(frozen=True)
class SyncResult:
    """Result of one sync: number of files in the store, their bytes, and what was skipped and why."""

    files: int
    bytes: int
    skipped: tuple[Skipped, ...]


@dataclass(frozen=True)
class ArtifactPage:
    """One page of an attempt's files, in order of path."""

    files: tuple[ArtifactFile, ...]
    next: str | None  # pass it as `after` for the next page; None on the last one
    total_files: int
    total_bytes: int  # their bytes
    state: ArtifactsState  # `none` without a sync or a manifest, `partial` while the job runs, then the manifest's
    skipped: tuple[Skipped, ...]  # files that are not kept, and why
    folders: tuple[ArtifactFolder, ...]  # those whose path starts with the prefix, on the first page


class OpenArtifact(NamedTuple):
    """A file opened for reading, which the caller closes; `sha256` once the attempt is closed."""

    file: BinaryIO
    size: int
    sha256: str | None
    mtime_ms: int


class Closing(NamedTuple):
    lost: Sequence[Skipped] = ()  # files that should have been fetched into the folder and could not be, and why
    max_bytes: int | None = None  # bytes to keep, if less than the store's own limit
    stopped: Stopped = never  # polled meanwhile; once True, only what is stored by then is kept


CLOSE_ALL = Closing()


class ArtifactReceiver(Protocol):
    """Takes the artifacts of one attempt from a worker on another host."""

    def sign(self, paths: Sequence[str]) -> dict[str, Any] | None:
        """Return where the worker can put files by itself; None: nowhere, they come in pieces."""

    def add(self, body: bytes) -> None:
        """Store pieces of files."""

    def take_list(self, data: bytes, *, final: bool) -> dict[str, int]:
        """Take the list of files; return those that are missing, with the bytes of their pieces that are here."""


class ArtifactStore(ABC):
    """A store of artifacts. Only one worker at a time makes writing calls on an attempt."""

    @abstractmethod
    def sync(self, job_id: str, attempt: int, source: Path, *, final: bool = False) -> SyncResult:
        """Mirror the job's folder as it is now, including changed, replaced and deleted files.

        A closed attempt is not changed. If the folder itself no longer exists, the stored files are kept. Raises
        `OSError`: the store cannot be written, e.g. the disk is full. A retry continues from there.

        Args:
            source: The folder the job writes to; nothing in it is trusted.
            final: The job has ended: files that change meanwhile are read again.
        """

    @abstractmethod
    def close(self, job_id: str, attempt: int, source: Path, closing: Closing = CLOSE_ALL) -> Manifest:
        """Sync a last time, hash every file and write the manifest; later syncs change nothing, a repeat returns it.

        The manifest names only files that are in the store with that hash, even after a power cut. It is `partial` if
        something could not be kept. An attempt without files has none, and nothing in the store. Raises `OSError`:
        the store cannot be written, e.g. the disk is full. A retry continues from there.
        """

    @abstractmethod
    def open_list(self, job_id: str, attempt: int) -> ManifestReader | None:
        """Open the manifest of an attempt, or else the list of its last sync; None: there is neither."""

    @abstractmethod
    def open_many(self, job_id: str, attempt: int, files: Iterable[ArtifactFile]) -> Iterator[OpenArtifact]:
        """Open listed files one after another."""

    @abstractmethod
    def last_attempt(self, job_id: str) -> int:
        """Return the last attempt with artifacts, complete or not; 0 if there is none."""

    @abstractmethod
    def discard(self, job_id: str, attempt: int, selected: Callable[[str], bool]) -> int:
        """Delete the files of a closed attempt whose public path `selected` accepts; returns their number.

        The manifest is rewritten first: a crash in between leaves unlisted files, never entries without a file. Of two
        concurrent deletions, each keeps what the other left.
        """

    @abstractmethod
    def remove(self, job_id: str) -> None:
        """Delete the artifacts of all attempts of a job; it is not an error if there are none."""

    @abstractmethod
    def receiver(self, job_id: str, attempt: int) -> ArtifactReceiver:
        """Return what takes the artifacts that a worker on another host sends."""

    def list(
        self, job_id: str, attempt: int, *, prefix: str = "", after: str | None = None, limit: int = 1_000
    ) -> ArtifactPage:
        """Return a page of files whose public path starts with `prefix`, after path `after`."""
        opened = self.open_list(job_id, attempt)
        if opened is None:
            return ArtifactPage((), None, 0, 0, "none", (), ())
        with opened:
            files, following = opened.page(prefix, after, limit)
            header = opened.manifest
        folders = () if after else tuple(folder for folder in header.folders if f"{folder.path}/".startswith(prefix))
        return ArtifactPage(tuple(files), following, header.files, header.bytes, header.state, header.skipped, folders)

    def open(self, job_id: str, attempt: int, path: str) -> OpenArtifact:
        """Open one file by its public path."""
        parse_public_path(path)
        opened = self.open_list(job_id, attempt)
        if opened is None:
            raise not_found(path)
        with opened:
            entry = opened.get(path)
        if entry is None:
            raise not_found(path)
        return next(iter(self.open_many(job_id, attempt, [entry])))

    def walk(self, job_id: str, attempt: int, start: str = "") -> Iterator[ArtifactFile]:
        """Yield all files from path `start` on, in order of path."""
        if opened := self.open_list(job_id, attempt):
            with opened:
                yield from opened.files(start)

    def folders(self, job_id: str, attempt: int) -> tuple[ArtifactFolder, ...]:
        """Return the folders of an attempt, sorted by path."""
        opened = self.open_list(job_id, attempt)
        if opened is None:
            return ()
        with opened:
            return opened.manifest.folders

    def link(self, job_id: str, attempt: int, path: str, *, for_worker: bool = False) -> str | None:  # noqa: ARG002 - other stores use them
        """Return a public URL of a file of a closed attempt, served as an attachment; None if there is none.

        `for_worker`: also where browsers are given none.
        """
        return None

    def folder(self, job_id: str, attempt: int) -> Path | None:  # noqa: ARG002 - other stores use them
        """Return the folder with an attempt's files, to be read only; None if they are not on this machine."""
        return None


class DirectoryStore(ArtifactStore):
    """Artifacts in a directory of this machine (or one mounted on every machine that shares it)."""

    def __init__(self, root: Path, *, limits: ArtifactLimits | None = None) -> None:
        self._root = root
        self._limits = limits or ArtifactLimits()

    def sync(self, job_id: str, attempt: int, source: Path, *, final: bool = False) -> SyncResult:
        if manifest := self._manifest(job_id, attempt):
            return SyncResult(manifest.files, manifest.bytes, manifest.skipped)
        directory = self._directory(job_id, attempt)
        if not directory.exists() and (_is_empty(source) or not source.exists()):
            return SyncResult(0, 0, ())  # also of an attempt that was closed without files, and removed
        stored, skips = mirror_folder(directory, source, self._limits, final=final)
        files = sorted(
            ArtifactFile(to_public_path(path), seen.size, seen.mtime_ns // 1_000_000, None, seen.mode)
            for path, seen in stored.files.items()
        )
        listing = _summary("partial", files, stored, skips)
        write_manifest(directory / LISTING, listing, files, durable=False)
        return SyncResult(listing.files, listing.bytes, listing.skipped)

    def close(self, job_id: str, attempt: int, source: Path, closing: Closing = CLOSE_ALL) -> Manifest:
        if manifest := self._manifest(job_id, attempt):
            return manifest
        directory = self._directory(job_id, attempt)
        if not closing.lost and not directory.exists() and _is_empty(source):  # most jobs leave none
            return Manifest("complete", 0, 0, ())
        manifest, files = _store(directory, source, closing, self._limits.capped(closing.max_bytes))
        with suppress(FileExistsError):  # written meanwhile by another worker: its files are removed by now
            write_manifest(directory / MANIFEST, manifest, files, durable=True, replace=False)
        (directory / LISTING).unlink(missing_ok=True)
        for left in directory.glob(f"{INCOMING}*"):
            with suppress(OSError):
                remove_tree(left)
        return self._manifest(job_id, attempt) or manifest

    def open_many(self, job_id: str, attempt: int, files: Iterable[ArtifactFile]) -> Iterator[OpenArtifact]:
        parents: list[str] | None = None
        folder = -1
        try:
            for entry in files:
                *above, name = parse_public_path(entry.path)
                try:
                    if above != parents:  # the next file is nearly always in the folder of the last one
                        if folder >= 0:
                            os.close(folder)
                        folder, parents = -1, None
                        with opened_folder(self._directory(job_id, attempt) / "files") as root:
                            folder, parents = open_beneath(root, above), above
                    descriptor = os.open(name, OPEN_FILE, dir_fd=folder)
                except OSError as error:
                    if error.errno not in NOT_A_FOLDER:
                        raise
                    raise not_found(entry.path) from None
                file = os.fdopen(descriptor, "rb")
                status = os.fstat(descriptor)
                if not stat.S_ISREG(status.st_mode):
                    file.close()
                    raise not_found(entry.path)
                yield OpenArtifact(file, status.st_size, entry.sha256, status.st_mtime_ns // 1_000_000)
        finally:
            if folder >= 0:
                os.close(folder)

    def last_attempt(self, job_id: str) -> int:
        return max((int(folder.name) for folder in self._directory(job_id, 0).parent.glob("[0-9]*")), default=0)

    def discard(self, job_id: str, attempt: int, selected: Callable[[str], bool]) -> int:
        directory = self._directory(job_id, attempt)
        if self._manifest(job_id, attempt) is None:
            return 0
        with opened_folder(directory) as locked:
            fcntl.flock(locked, fcntl.LOCK_EX)  # of two concurrent deletions, neither may restore the other's entries
            with ManifestReader(directory / MANIFEST) as closed:
                files, before = list(closed.files()), closed.manifest
            kept = [file for file in files if not selected(file.path)]
            gone = [file.path for file in files if selected(file.path)]
            header = reduced(before, files, kept)
            write_manifest(directory / MANIFEST, header, kept, durable=True)
            with opened_folder(directory / "files") as root:
                for path in gone:
                    *parents, name = parse_public_path(path)
                    with suppress(FileNotFoundError), opened_beneath(root, parents) as folder:
                        os.unlink(name, dir_fd=folder)
        return len(gone)

    def remove(self, job_id: str) -> None:
        remove_tree(self._directory(job_id, 0).parent)

    def remove_attempt(self, job_id: str, attempt: int) -> None:
        """Delete the artifacts of one attempt; it is not an error if there are none."""
        remove_tree(self._directory(job_id, attempt))

    def receiver(self, job_id: str, attempt: int) -> ReceivedArtifacts:
        return ReceivedArtifacts(self._directory(job_id, attempt))

    def folder(self, job_id: str, attempt: int) -> Path:
        return self._directory(job_id, attempt) / "files"

    def _directory(self, job_id: str, attempt: int) -> Path:
        return Path(self._root, checked_job_id(job_id)[:3], job_id, str(attempt))

    def open_list(self, job_id: str, attempt: int) -> ManifestReader | None:
        directory = self._directory(job_id, attempt)
        # `close` writes the manifest and then removes the listing: if both seem missing, the second try finds it.
        for name in (MANIFEST, LISTING, MANIFEST):
            with suppress(FileNotFoundError):
                return ManifestReader(directory / name)
        return None

    def _manifest(self, job_id: str, attempt: int) -> Manifest | None:
        try:
            with ManifestReader(self._directory(job_id, attempt) / MANIFEST) as closed:
                return closed.manifest
        except FileNotFoundError:
            return None


def _store(
    directory: Path, source: Path, closing: Closing, limits: ArtifactLimits
) -> tuple[Manifest, list[ArtifactFile]]:
    """Mirror a job's folder a last time, and hash its files."""
    stored, skips = mirror_folder(directory, source, limits, final=True, stopped=closing.stopped)
    for path, why in closing.lost:
        skips.add(path, why, lost=True)
    with opened_folder(directory / "files") as folder:
        files = hash_files(folder, stored, skips, closing.stopped)
    return _summary("partial" if skips.lost else "complete", files, stored, skips), files


def _is_empty(source: Path) -> bool:
    """Return whether a job's folder is there and has nothing in it."""
    try:
        with opened_folder(source) as folder, os.scandir(folder) as entries:
            return not any(entries)
    except OSError:
        return False


def _summary(state: ArtifactsState, files: Sequence[ArtifactFile], stored: FolderScan, skips: SkipList) -> Manifest:
    folders = (
        ArtifactFolder(to_public_path(path), seen.mtime_ns // 1_000_000, seen.mode)
        for path, seen in stored.folders.items()
    )
    return Manifest(state, len(files), sum(file.size for file in files), skips.entries(), tuple(sorted(folders)))
