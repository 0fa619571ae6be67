"""Packs: archives of file contents, each entry named by the sha256 of its content.

<root>/packs/<sha>                the archive as it was sent
<root>/packs/<sha>.json           the size of each content, by digest
"""

import hashlib
import json
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO, NamedTuple

from core.storage.archives import ArchiveLimits, fill_folder, read_entries
from core.storage.archives.folder_writer import FolderWriter
from core.storage.archives.limits import READ_BYTES, Budget, invalid, shortened
from core.storage.archives.tree import ArchiveEntry, EntryKind, EntryTree, Parts
from core.storage.workspaces.manifest import Manifest
from core.storage.workspaces.stored_files import StoredFile, list_files, metadata_path, receive, set_aside
from core.system.filesystem import sync_folder, write_atomically
from core.system.trees import move

MAX_PACKS = 64  # most packs of one workspace: each is read when a job starts

_ENTRY_BYTES = 1024  # bytes that an archive needs for a file beside its content


class Pack(NamedTuple):
    sha256: str  # digest of the archive
    size: int  # bytes of the archive
    contents: dict[str, int]  # size of each content, by digest


class PackStore:
    """Packs on disk, addressed by the digest of the archive. `root`: folder of the store; made when first needed."""

    def __init__(self, root: Path, incoming: Path) -> None:
        self._root = root
        self._incoming = incoming

    def path(self, sha256: str) -> Path:
        return self._root / sha256

    def add(self, stream: BinaryIO, wanted: dict[str, int], limits: ArchiveLimits) -> Pack:
        """Store an archive of contents after verifying each of them.

        Raises `OSError`: the disk is full; nothing is kept.

        Args:
            stream: The archive's bytes.
            wanted: The size of each content that may be in it, by digest.
        """
        self._root.mkdir(parents=True, exist_ok=True)
        with receive(stream, self._incoming, limits.max_upload_bytes) as upload:
            contents = _verify(upload.path, wanted, limits)
            pack = Pack(upload.sha256, upload.size, contents)
            path = self.path(pack.sha256)
            index = json.dumps({"size": pack.size, "contents": contents}).encode()
            write_atomically(metadata_path(path), index, folder=self._incoming)
            os.utime(upload.path)  # checking it may have taken minutes
            move(upload.path, path)
            sync_folder(self._root)
        return pack

    def read(self, sha256: str) -> Pack | None:
        try:
            facts = json.loads(metadata_path(self.path(sha256)).read_bytes())
            pack = Pack(sha256, facts["size"], facts["contents"])
        except (FileNotFoundError, KeyError, TypeError, ValueError):
            return None
        return pack if self.has(sha256, pack.size) else None

    def has(self, sha256: str, size: int) -> bool:
        """Return whether this pack is stored, in full: a power cut may truncate it."""
        with suppress(FileNotFoundError):
            return self.path(sha256).stat().st_size == size
        return False

    def mark_used(self, sha256: str) -> bool:
        """Protect a pack from being discarded, because a new workspace will name it; return whether it is stored."""
        try:
            os.utime(self.path(sha256))
        except FileNotFoundError:
            return False
        return True

    def stored(self) -> Iterator[StoredFile]:
        if self._root.is_dir():
            yield from list_files(self._root)

    def discard(self, sha256: str, *, unused_since: float) -> bool:
        """Delete a pack that no workspace names and that was not used since a time; return whether it was deleted."""
        gone = set_aside(self.path(sha256), self._incoming, unused_since)
        if gone:
            set_aside(metadata_path(self.path(sha256)), self._incoming, unused_since)
        return gone


def choose_packs(packs: Iterable[Pack], wanted: dict[str, int]) -> dict[str, Pack]:
    """Return the packs to take these contents from, and by content the pack that has it.

    Packs of which less than half is wanted are left out, and the least useful ones if there are many: what they have
    is sent again. Otherwise one file could keep a pack of any size, and a workspace might have any number of packs.
    """
    left = dict(wanted)
    useful: list[tuple[int, Pack, list[str]]] = []
    for pack in packs:
        found = [sha256 for sha256 in pack.contents if sha256 in left]
        used = sum(left.pop(sha256) + _ENTRY_BYTES for sha256 in found)
        if found and 2 * used >= sum(pack.contents.values()) + len(pack.contents) * _ENTRY_BYTES:
            useful.append((used, pack, found))
    useful.sort(key=lambda one: -one[0])
    return {sha256: pack for _, pack, found in useful[: MAX_PACKS - 1] for sha256 in found}


def assemble(manifest: Manifest, packs: Iterable[Path], destination: Path, limits: ArchiveLimits) -> None:
    """Write the files of a manifest into a folder, all of them or nothing, as `core.storage.archives.extract`."""
    with fill_folder(destination) as writer:
        tree = EntryTree(limits)
        places: defaultdict[str, list[tuple[Parts, ArchiveEntry]]] = defaultdict(list)
        for entry, sha256 in manifest.entries():
            parts = tree.add(entry)
            if entry.kind is EntryKind.FILE:
                places[sha256].append((parts, entry))
            elif entry.kind is EntryKind.FOLDER and parts:
                writer.folder(parts, entry)
        for pack in packs:
            _unpack(pack, places, writer, limits)
        if places:
            raise invalid(f"{len(places)} of its contents are missing; submit the folder again")
        writer.finish(tree.symlinks())


def _unpack(
    pack: Path, places: dict[str, list[tuple[Parts, ArchiveEntry]]], writer: FolderWriter, limits: ArchiveLimits
) -> None:
    with pack.open("rb") as file:
        _, contents = read_entries(file, limits, Budget(limits))
        for content in contents:
            chunks = _verified(content)
            written: Parts | None = None
            for parts, entry in places.pop(content.name, ()):
                if written is None:
                    writer.file(parts, replace(entry, chunks=chunks))
                    written = parts
                else:
                    # A copy, not a link: the job may change one of them.
                    with writer.open_file(written) as same:
                        writer.file(parts, replace(entry, chunks=iter(lambda: same.read(READ_BYTES), b"")))
            for _ in chunks:
                pass


def _verify(path: Path, wanted: dict[str, int], limits: ArchiveLimits) -> dict[str, int]:
    """Read a pack to its end, and return the size of each content."""
    contents: dict[str, int] = {}
    with path.open("rb") as file:
        _, entries = read_entries(file, limits, Budget(limits))
        for entry in entries:
            if entry.name not in wanted or entry.name in contents or entry.kind is not EntryKind.FILE:
                raise invalid(
                    f"entry {shortened(entry.name)} is there twice, or not named by a sha256 of the manifest; "
                    "send each content that is missing once"
                )
            contents[entry.name] = sum(map(len, _verified(entry)))
            if contents[entry.name] != wanted[entry.name]:
                raise invalid(f"entry {shortened(entry.name)} has another size than in the manifest; send it again")
    return contents


def _verified(content: ArchiveEntry) -> Iterator[bytes]:
    digest = hashlib.sha256()
    for chunk in content.chunks:
        digest.update(chunk)
        yield chunk
    if digest.hexdigest() != content.name:
        raise invalid(f"entry {shortened(content.name)} has another sha256 than its name; send it again")
