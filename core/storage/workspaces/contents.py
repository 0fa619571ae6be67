"""Reading of stored workspaces without unpacking them to disk: their files with digests, and the texts of some."""

import hashlib
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import NamedTuple

from core.storage.archives import ArchiveLimits, read_entries
from core.storage.archives.limits import Budget
from core.storage.archives.tree import ArchiveEntry, EntryKind, split_name
from core.storage.workspaces.manifest import Manifest


class FileContent(NamedTuple):
    """The content of a file: its sha256 and bytes; of a symbolic link, its target in place of the digest."""

    digest: str
    size: int


def list_archive(path: Path, limits: ArchiveLimits) -> dict[str, FileContent]:
    found: dict[str, FileContent] = {}
    for name, entry in _entries(path, limits):
        if entry.kind is EntryKind.FILE:
            digest, size = hashlib.sha256(), 0
            for chunk in entry.chunks:
                digest.update(chunk)
                size += len(chunk)
            found[name] = FileContent(digest.hexdigest(), size)
        elif entry.kind is EntryKind.SYMLINK:
            found[name] = FileContent(f"link to {entry.target}", 0)
        elif entry.kind is EntryKind.HARD_LINK:
            target = "/".join(split_name(entry.target, limits))
            found[name] = found.get(target, FileContent(f"link to {entry.target}", 0))
    return found


def read_archive(path: Path, wanted: Collection[str], limits: ArchiveLimits) -> dict[str, bytes]:
    """Return the contents of some files of an archive, by path; the caller knows that they are small."""
    read: dict[str, bytes] = {}
    for name, entry in _entries(path, limits):
        if entry.kind is EntryKind.FILE:
            if name in wanted:
                read[name] = b"".join(entry.chunks)
            else:
                for _ in entry.chunks:
                    pass
    return read


def list_manifest(manifest: Manifest) -> dict[str, FileContent]:
    """Return the files and links of a manifest, by path, which reads none of them."""
    files = {path: FileContent(sha256, size) for path, _, size, sha256 in manifest.files}
    return files | {path: FileContent(f"link to {target}", 0) for path, target in manifest.links}


def _entries(path: Path, limits: ArchiveLimits) -> Iterator[tuple[str, ArchiveEntry]]:
    with path.open("rb") as file:
        _, entries = read_entries(file, limits, Budget(limits))
        for entry in entries:
            yield "/".join(split_name(entry.name, limits)), entry
