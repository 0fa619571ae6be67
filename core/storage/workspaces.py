"""Uploaded workspace archives, each stored once under the sha256 of its bytes.

    <root>/incoming/<random>          an upload in progress
    <root>/<sha[:2]>/<sha>            the archive as it was sent
    <root>/<sha[:2]>/<sha>.json       its metadata

An archive counts as stored once both files exist. The metadata is written first; after a crash between the two the
archive is simply uploaded again.
"""

import hashlib
import json
import os
import re
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO, NamedTuple

from core.errors import WorkspaceInvalid
from core.storage.archives import ArchiveKind, ArchiveLimits, inspect
from core.system.filesystem import sync_folder, write_atomically

_BLOCK = 1024**2
_SHA256 = re.compile(r"[0-9a-f]{64}")
_INCOMING = "incoming"


@dataclass(frozen=True)
class StoredWorkspace:
    """One stored archive.

    Attributes:
        sha256: Digest of the archive's bytes, 64 lower-case hexadecimal digits.
        size: Bytes as sent.
        kind: Its format.
        files: Regular files and links in it.
        unpacked_bytes: Bytes of its files, unpacked.
    """

    sha256: str
    size: int
    kind: ArchiveKind
    files: int
    unpacked_bytes: int


class ArchiveUsage(NamedTuple):
    """A stored archive: its digest, its bytes, and when it was last stored or named by a new job (Unix seconds)."""

    sha256: str
    size: int
    used_at: float


class WorkspaceStore:
    """Archives on disk, addressed by content.

    Processes may share a root: files appear in it whole, by rename, and equal content has an equal name.

    Args:
        root: Folder of the store; made when first needed.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._incoming = root / _INCOMING

    def add(self, stream: BinaryIO, limits: ArchiveLimits, *, expected_sha256: str | None = None) -> StoredWorkspace:
        """Store an upload after reading all of it; if an equal one is stored already, return its metadata.

        Args:
            stream: The archive's bytes, read to the end in blocks.
            limits: Limits on the archive; `max_upload_bytes` is enforced while reading.
            expected_sha256: The digest the sender computed, if it sent one.

        Raises:
            WorkspaceInvalid: The upload is too large, damaged in transit, or not an acceptable archive.
            OSError: The disk is full or the stream broke; nothing is kept.
        """
        if expected_sha256 is not None:
            _check_sha256(expected_sha256)
        self._incoming.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(dir=self._incoming)
        upload = Path(name)
        try:
            with open(descriptor, "wb") as out:  # noqa: PTH123 - opens a descriptor, which Path cannot
                sha256, size = _copy(stream, out, limits.max_upload_bytes)
            if expected_sha256 not in (None, sha256):
                raise WorkspaceInvalid(
                    f"workspace: the upload was damaged in transit: its sha256 is {sha256}, not {expected_sha256}; "
                    "send it again",
                    field="workspace",
                )
            stored = self.stat(sha256) if self.mark_used(sha256) else None
            return stored or self._store(upload, sha256, size, limits)
        finally:
            upload.unlink(missing_ok=True)

    def has(self, sha256: str) -> bool:
        """Return whether this archive is stored.

        Raises:
            WorkspaceInvalid: `sha256` is not a valid digest.
        """
        return self.stat(sha256) is not None

    def path(self, sha256: str) -> Path:
        """Return the path of this archive, stored or not.

        Raises:
            WorkspaceInvalid: `sha256` is not a valid digest.
        """
        _check_sha256(sha256)
        return self._root / sha256[:2] / sha256

    def stat(self, sha256: str) -> StoredWorkspace | None:
        """Return the metadata of a stored archive; None if it is not stored.

        Raises:
            WorkspaceInvalid: `sha256` is not a valid digest.
        """
        archive = self.path(sha256)
        try:
            size = archive.stat().st_size
            facts = json.loads(_metadata_path(archive).read_bytes())
            stored = StoredWorkspace(
                sha256, facts["size"], ArchiveKind(facts["kind"]), facts["files"], facts["unpacked_bytes"]
            )
        except (FileNotFoundError, KeyError, TypeError, ValueError):
            return None
        # An archive that was truncated by a power cut must not count as stored.
        return stored if stored.size == size else None

    def mark_used(self, sha256: str) -> bool:
        """Mark an archive as used, because a new job will name it; protects it from `discard`.

        Returns:
            Whether it is stored.

        Raises:
            WorkspaceInvalid: `sha256` is not a valid digest.
        """
        try:
            os.utime(self.path(sha256))
        except FileNotFoundError:
            return False
        return self.has(sha256)

    def archives(self) -> Iterator[ArchiveUsage]:
        """Yield all archives, in no particular order."""
        for folder in self._root.glob("[0-9a-f][0-9a-f]"):
            for archive in folder.iterdir():
                if _SHA256.fullmatch(archive.name):
                    with suppress(FileNotFoundError):
                        status = archive.stat()
                        yield ArchiveUsage(archive.name, status.st_size, status.st_mtime)

    def discard(self, sha256: str, *, unused_since: float) -> bool:
        """Delete an archive that was not stored or used since a time (Unix seconds); returns whether it was deleted.

        The caller must know that no job needs it. An archive that is used concurrently is kept.
        """
        archive = self.path(sha256)
        gone = self._set_aside(archive, unused_since)
        if gone:
            # Kept if an upload of the same archive has just rewritten it.
            self._set_aside(_metadata_path(archive), unused_since)
        return gone

    def _set_aside(self, path: Path, unused_since: float) -> bool:
        self._incoming.mkdir(parents=True, exist_ok=True)
        aside = self._incoming / f"withdrawn-{os.getpid()}-{threading.get_ident()}-{path.name}"
        try:
            if path.stat().st_mtime >= unused_since:
                return False
            path.rename(aside)
        except FileNotFoundError:
            return False
        # Checked again after the rename: the archive may have been used between the check and the rename.
        with suppress(FileNotFoundError):  # `sweep_temporary` may delete the renamed file too
            if aside.stat().st_mtime >= unused_since:
                aside.rename(path)
                return False
            aside.unlink()
        return True

    def remove(self, sha256: str) -> None:
        """Delete an archive; it is not an error if there is none. The caller must know that no job needs it.

        Raises:
            WorkspaceInvalid: `sha256` is not a valid digest.
        """
        archive = self.path(sha256)
        archive.unlink(missing_ok=True)
        _metadata_path(archive).unlink(missing_ok=True)

    def sweep_temporary(self, older_than_s: float) -> int:
        """Delete temporary files of uploads whose process died.

        Args:
            older_than_s: Seconds without a write after which an upload counts as dead.

        Returns:
            Number of deleted files.
        """
        if not self._incoming.is_dir():
            return 0
        removed = 0
        oldest = time.time() - older_than_s
        for upload in self._incoming.iterdir():
            # The upload may end and delete its file after the listing.
            with suppress(FileNotFoundError):
                if upload.stat().st_mtime < oldest:
                    upload.unlink()
                    removed += 1
        return removed

    def _store(self, upload: Path, sha256: str, size: int, limits: ArchiveLimits) -> StoredWorkspace:
        summary = inspect(upload, limits)
        stored = StoredWorkspace(sha256, size, summary.kind, summary.files, summary.bytes)
        archive = self.path(sha256)
        archive.parent.mkdir(exist_ok=True)
        write_atomically(_metadata_path(archive), json.dumps(asdict(stored)).encode(), folder=self._incoming)
        upload.replace(archive)
        sync_folder(archive.parent)
        return stored


def _check_sha256(sha256: str) -> None:
    if not _SHA256.fullmatch(sha256):
        raise WorkspaceInvalid(
            f"workspaceSha256: {sha256[:80]!r} is not a sha256; send 64 lower-case hexadecimal digits",
            field="workspaceSha256",
        )


def _metadata_path(archive: Path) -> Path:
    return archive.with_name(f"{archive.name}.json")


def _copy(stream: BinaryIO, out: BinaryIO, max_bytes: int) -> tuple[str, int]:
    digest = hashlib.sha256()
    size = 0
    while block := stream.read(_BLOCK):
        size += len(block)
        if size > max_bytes:
            raise WorkspaceInvalid(
                f"workspace: the upload is larger than {max_bytes} bytes, the limit here; leave data sets and "
                "checkpoints out (.gradientignore) and keep them in storage instead",
                field="workspace",
            )
        digest.update(block)
        out.write(block)
    out.flush()
    os.fsync(out.fileno())
    return digest.hexdigest(), size
