"""Packs: archives of file contents (`pack_reader` has their format).

<root>/packs/<sha>                the archive
<root>/packs/<sha>.json           the size of each content, by digest
"""

import json
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import BinaryIO, NamedTuple

from core.storage.workspaces.folder_writer import FolderWriter, fill_folder
from core.storage.workspaces.limits import WorkspaceLimits, invalid, shortened
from core.storage.workspaces.manifest import Manifest
from core.storage.workspaces.pack_reader import READ_BYTES, read_pack
from core.storage.workspaces.stored_files import StoredFile, list_files, metadata_path, receive, set_aside
from core.storage.workspaces.tree import Entry, EntryKind, EntryTree, Parts
from core.system.filesystem import sync_folder, write_atomically
from core.system.untrusted_folders import move

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

    def add(self, stream: BinaryIO, wanted: dict[str, int], limits: WorkspaceLimits) -> Pack:
        """Store an archive of contents after verifying each of them.

        Raises `OSError`: the disk is full; nothing is kept.

        Args:
            stream: The archive's bytes.
            wanted: The size of each content that may be in it, by digest.
        """
        with receive(stream, self._incoming, limits.max_upload_bytes) as upload:
            pack = Pack(upload.sha256, upload.size, _verify(upload.path, upload.size, wanted, limits))
            self.keep(pack, upload.path)
        return pack

    def keep(self, pack: Pack, file: Path) -> None:
        """Move a verified pack here."""
        self._root.mkdir(parents=True, exist_ok=True)
        path = self.path(pack.sha256)
        index = json.dumps({"size": pack.size, "contents": pack.contents}).encode()
        write_atomically(metadata_path(path), index, folder=self._incoming)
        os.utime(file)  # checking it may have taken minutes
        move(file, path)
        sync_folder(self._root)

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
        contents = [sha256 for sha256 in pack.contents if sha256 in left]
        used = sum(left.pop(sha256) + _ENTRY_BYTES for sha256 in contents)
        if contents and 2 * used >= sum(pack.contents.values()) + len(pack.contents) * _ENTRY_BYTES:
            useful.append((used, pack, contents))
    useful.sort(key=lambda choice: -choice[0])
    return {sha256: pack for _, pack, contents in useful[: MAX_PACKS - 1] for sha256 in contents}


def assemble(manifest: Manifest, packs: Iterable[Path], destination: Path, limits: WorkspaceLimits) -> None:
    """Write the files of a manifest into a folder, all of them or nothing."""
    with fill_folder(destination) as writer:
        tree = EntryTree(limits)
        places: defaultdict[str, list[tuple[Parts, Entry]]] = defaultdict(list)
        for entry, sha256 in manifest.entries():
            parts = tree.add(entry)
            if entry.kind is EntryKind.FILE:
                places[sha256].append((parts, entry))
            elif entry.kind is EntryKind.FOLDER and parts:
                writer.folder(parts, entry)
        for pack in packs:
            _unpack(pack, places, writer)
        if places:
            raise invalid(f"{len(places)} of its contents are missing; submit the folder again")
        writer.finish(tree.symlinks())


def _unpack(pack: Path, places: dict[str, list[tuple[Parts, Entry]]], writer: FolderWriter) -> None:
    with pack.open("rb") as file:
        for content in read_pack(file):
            written: Parts | None = None
            for parts, entry in places.pop(content.sha256, ()):
                if written is None:
                    writer.file(parts, entry, content.chunks)
                    written = parts
                else:
                    # A copy, not a link: the job may change one of them.
                    with writer.open_file(written) as same:
                        writer.file(parts, entry, iter(partial(same.read, READ_BYTES), b""))


def _verify(path: Path, packed: int, wanted: dict[str, int], limits: WorkspaceLimits) -> dict[str, int]:
    """Read a pack to its end, and return the size of each content."""
    contents: dict[str, int] = {}
    unpacked = 0
    with path.open("rb") as file:
        for content in read_pack(file):
            if content.sha256 not in wanted or content.sha256 in contents:
                raise invalid(
                    f"entry {shortened(content.sha256)} is there twice, or not named by a sha256 of the manifest; "
                    "send each content that is missing once"
                )
            if content.size != wanted[content.sha256]:
                raise invalid(f"entry {shortened(content.sha256)} has another size than in the manifest; send it again")
            contents[content.sha256] = content.size
            unpacked += content.size
            limits.check_ratio(unpacked=unpacked, packed=packed)
    return contents
