"""What jobs leave in their artifacts folder: kept while they run, closed by a manifest at the end.

Layout of the directory store, below its root: `<first 3 of the id>/<job id>/<attempt>/` with `files/` (the
mirror), `incoming/` (files on their way in), `listing.jsonl` (after each sync) and `manifest.jsonl` (written
once, last). On one file system files are hard links to the job's own: no byte is copied.
"""

import fcntl
import os
import re
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO, NamedTuple, Protocol

from core.artifact_hash import hash_files
from core.artifact_mirror import Stopped, never
from core.artifact_paths import NOT_A_FOLDER, OPEN_FILE, not_found, open_beneath, opened_folder, present, resolve
from core.artifact_survey import ArtifactLimits, Skipped, Skips
from core.artifact_sync import bring_in
from core.errors import JobNotFound
from core.manifests import ArtifactFile, ArtifactsState, FileList, Manifest, write_list
from core.trees import remove_tree

__all__ = [
    "ArtifactFile",
    "ArtifactLimits",
    "ArtifactStore",
    "DirectoryStore",
    "Manifest",
    "OpenArtifact",
    "Page",
    "Skipped",
    "SyncResult",
    "page_of",
]

_JOB_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")


@dataclass(frozen=True)
class SyncResult:
    """What one sync left in the store: number of files, their bytes, what was not taken and why."""

    files: int
    bytes: int
    skipped: tuple[Skipped, ...]


@dataclass(frozen=True)
class Page:
    """Some of an attempt's files, in order of path.

    Args:
        files: The files of this page.
        next: Pass it as `after` for the next page; None on the last one.
        total_files: Files of the attempt, whatever the prefix.
        total_bytes: Their bytes.
        state: `none` before the first sync, `partial` while the job runs, then the manifest's.
        skipped: What is not kept, and why.
    """

    files: tuple[ArtifactFile, ...]
    next: str | None
    total_files: int
    total_bytes: int
    state: ArtifactsState
    skipped: tuple[Skipped, ...]


class OpenArtifact(NamedTuple):
    """A file opened for reading, which the caller closes; `sha256` once the attempt is closed."""

    file: BinaryIO
    size: int
    sha256: str | None
    mtime_ms: int


class ArtifactStore(Protocol):
    """Where outputs live. Calls on one attempt that write come from one worker at a time."""

    def sync(self, job_id: str, attempt: int, source: Path, *, final: bool = False) -> SyncResult:
        """Makes the store hold what the job's folder holds now."""

    def close(
        self,
        job_id: str,
        attempt: int,
        source: Path,
        *,
        lost: Sequence[Skipped] = (),
        max_bytes: int | None = None,
        stopped: Stopped = never,
    ) -> Manifest:
        """Syncs a last time, hashes every file and writes the manifest; repeating returns the same."""

    def list(
        self, job_id: str, attempt: int, *, prefix: str = "", after: str | None = None, limit: int = 1_000
    ) -> Page:
        """A page of files whose public path starts with `prefix`, after path `after`."""

    def open(self, job_id: str, attempt: int, path: str) -> OpenArtifact:
        """Opens one file by its public path."""

    def walk(self, job_id: str, attempt: int) -> Iterator[ArtifactFile]:
        """All files in order of path."""

    def discard(self, job_id: str, attempt: int, meant: Callable[[str], bool]) -> int:
        """Deletes the files of a closed attempt whose public path is meant; how many there were."""

    def remove(self, job_id: str) -> None:
        """Deletes what all attempts of a job left; deleting nothing is success."""

    def link(self, job_id: str, attempt: int, path: str, headers: dict[str, str]) -> str | None:
        """An address at which anybody gets a closed file from where it lies, with these headers; None: none."""


class DirectoryStore:
    """Artifacts in a directory of this machine (or one mounted on all that share it)."""

    def __init__(self, root: Path, *, limits: ArtifactLimits | None = None) -> None:
        self._root = root
        self._limits = limits or ArtifactLimits()

    def sync(self, job_id: str, attempt: int, source: Path, *, final: bool = False) -> SyncResult:
        """Makes the store hold what the job's folder holds now; new, changed, replaced and deleted files follow.

        A closed attempt stays as it is, and so does what is stored if the folder itself is gone.

        Args:
            job_id: The job.
            attempt: Its attempt.
            source: The folder the job writes to; nothing in it is trusted.
            final: The job has ended: files that seem to change are looked at again.

        Raises:
            OSError: The store cannot be written, e.g. the disk is full. Trying again goes on from there.
        """
        if manifest := self._manifest(job_id, attempt):
            return SyncResult(manifest.files, manifest.bytes, manifest.skipped)
        directory = self._directory(job_id, attempt)
        stored, skips = bring_in(directory, source, self._limits, final=final)
        files = sorted(
            ArtifactFile(present(path), seen.size, seen.mtime_ns // 1_000_000, None)
            for path, seen in stored.files.items()
        )
        listing = _summary("partial", files, skips)
        write_list(directory / "listing.jsonl", listing, files, durable=False)
        return SyncResult(listing.files, listing.bytes, listing.skipped)

    def close(
        self,
        job_id: str,
        attempt: int,
        source: Path,
        *,
        lost: Sequence[Skipped] = (),
        max_bytes: int | None = None,
        stopped: Stopped = never,
    ) -> Manifest:
        """Syncs a last time, hashes every file and writes the manifest, which is final.

        The manifest names only files that are in the store with the hash it gives, also after a power cut. What
        could not be kept makes it `partial`.

        Args:
            job_id: The job.
            attempt: Its attempt.
            source: The folder the job wrote to.
            lost: What should have come into that folder from elsewhere and could not, and why.
            max_bytes: Bytes that are kept, where that is less than the store's own limit.
            stopped: Asked while that takes its time: whether to leave it at what is kept by then.

        Raises:
            OSError: The store cannot be written, e.g. the disk is full. Trying again goes on from there.
        """
        if manifest := self._manifest(job_id, attempt):
            return manifest
        directory = self._directory(job_id, attempt)
        stored, skips = bring_in(directory, source, self._limits.within(max_bytes), final=True, stopped=stopped)
        for path, why in lost:
            skips.add(path, why, lost=True)
        with opened_folder(directory / "files") as folder:
            files = hash_files(folder, stored, skips, stopped)
        manifest = _summary("partial" if skips.lost else "complete", files, skips)
        write_list(directory / "manifest.jsonl", manifest, files, durable=True)
        (directory / "listing.jsonl").unlink(missing_ok=True)
        return manifest

    def list(
        self, job_id: str, attempt: int, *, prefix: str = "", after: str | None = None, limit: int = 1_000
    ) -> Page:
        """A page of files whose public path starts with `prefix`, after path `after`; as of the last sync."""
        opened = self._files(job_id, attempt)
        if opened is None:
            return Page((), None, 0, 0, "none", ())
        with opened:
            return page_of(opened, prefix, after, limit)

    def open(self, job_id: str, attempt: int, path: str) -> OpenArtifact:
        """Opens one file by its public path.

        Raises:
            ArtifactNotFound: There is no such file, or the path could not be one's.
        """
        *parents, name = resolve(path)
        opened = self._files(job_id, attempt)
        if opened is None:
            raise not_found(path)
        with opened:
            entry = opened.get(path)
        if entry is None:
            raise not_found(path)
        try:
            with opened_folder(self._directory(job_id, attempt) / "files") as root:
                folder = open_beneath(root, parents)
                try:
                    descriptor = os.open(name, OPEN_FILE, dir_fd=folder)
                finally:
                    os.close(folder)
        except OSError as error:
            if error.errno not in NOT_A_FOLDER:
                raise
            raise not_found(path) from None
        file = os.fdopen(descriptor, "rb")
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            file.close()
            raise not_found(path)
        return OpenArtifact(file, status.st_size, entry.sha256, status.st_mtime_ns // 1_000_000)

    def walk(self, job_id: str, attempt: int) -> Iterator[ArtifactFile]:
        """All files in order of path; as of the last sync while the attempt is not closed."""
        if opened := self._files(job_id, attempt):
            with opened:
                yield from opened.files()

    def discard(self, job_id: str, attempt: int, meant: Callable[[str], bool]) -> int:
        """Deletes the files of a closed attempt whose public path is meant; how many there were.

        The manifest is written anew first: whoever dies in between leaves bytes, never names of what is gone.

        Raises:
            OSError: The store cannot be written, e.g. the disk is full.
        """
        directory = self._directory(job_id, attempt)
        if self._manifest(job_id, attempt) is None:
            return 0
        with opened_folder(directory) as locked:
            fcntl.flock(locked, fcntl.LOCK_EX)  # of two that delete at once each keeps what the other left
            with FileList(directory / "manifest.jsonl") as closed:
                files, before = list(closed.files()), closed.manifest
            kept = [one for one in files if not meant(one.path)]
            gone = [one.path for one in files if meant(one.path)]
            header = replace(before, files=len(kept), bytes=sum(one.size for one in kept))
            write_list(directory / "manifest.jsonl", header, kept, durable=True)
            with opened_folder(directory / "files") as root:
                for path in gone:
                    self._unlink(root, path)
        return len(gone)

    def _unlink(self, root: int, path: str) -> None:
        *parents, name = resolve(path)
        with suppress(FileNotFoundError):
            folder = open_beneath(root, parents)
            try:
                os.unlink(name, dir_fd=folder)
            finally:
                os.close(folder)

    def remove(self, job_id: str) -> None:
        """Deletes what all attempts of a job left; deleting nothing is success."""
        remove_tree(self._directory(job_id, 0).parent)

    def forget(self, job_id: str, attempt: int) -> None:
        """Deletes what one attempt left; deleting nothing is success."""
        remove_tree(self._directory(job_id, attempt))

    def link(self, job_id: str, attempt: int, path: str, headers: dict[str, str]) -> str | None:
        """None: only this machine can read its files."""
        del job_id, attempt, path, headers
        return None

    def _directory(self, job_id: str, attempt: int) -> Path:
        if not _JOB_ID.fullmatch(job_id):
            raise JobNotFound(job_id)
        return self._root / job_id[:3] / job_id / str(attempt)

    def _files(self, job_id: str, attempt: int) -> FileList | None:
        directory = self._directory(job_id, attempt)
        # Closing removes the listing after the manifest is there: one of the two is found on the second look.
        for name in ("manifest.jsonl", "listing.jsonl", "manifest.jsonl"):
            with suppress(FileNotFoundError):
                return FileList(directory / name)
        return None

    def _manifest(self, job_id: str, attempt: int) -> Manifest | None:
        try:
            with FileList(self._directory(job_id, attempt) / "manifest.jsonl") as closed:
                return closed.manifest
        except FileNotFoundError:
            return None


def page_of(opened: FileList, prefix: str, after: str | None, limit: int) -> Page:
    """A page of an opened list: files whose public path starts with `prefix`, after path `after`."""
    files, following = opened.page(prefix, after, limit)
    header = opened.manifest
    return Page(tuple(files), following, header.files, header.bytes, header.state, header.skipped)


def _summary(state: ArtifactsState, files: Sequence[ArtifactFile], skips: Skips) -> Manifest:
    return Manifest(state, len(files), sum(file.size for file in files), skips.entries())
