"""Uploaded workspaces: manifests of files, each stored once under the sha256 of its bytes.

An uploaded archive becomes a manifest with a pack of its contents.

    <root>/incoming/<random>          an upload in progress
    <root>/<sha[:2]>/<sha>            the manifest
    <root>/<sha[:2]>/<sha>.json       its metadata
    <root>/packs/                     the contents of the files, see `packs`

A workspace counts as stored once both files exist, and its packs. The metadata is written first; after a
crash between the two the workspace is simply uploaded again.
"""

import hashlib
import json
import os
import tempfile
import time
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, BinaryIO

from core.errors import WorkspaceInvalid, WorkspaceNotFound
from core.storage.workspaces.archives import convert
from core.storage.workspaces.contents import FileContent, list_manifest, read_contents
from core.storage.workspaces.limits import WorkspaceLimits
from core.storage.workspaces.manifest import Manifest, parse_manifest
from core.storage.workspaces.packs import Pack, PackStore, assemble, choose_packs
from core.storage.workspaces.stored_files import StoredFile, check_sha256, list_files, metadata_path, receive, set_aside
from core.system.filesystem import write_atomically

_INCOMING = "incoming"
_PACKS = "packs"


@dataclass(frozen=True)
class StoredWorkspace:
    sha256: str  # digest of the bytes of the manifest, 64 lower-case hexadecimal digits
    size: int  # bytes of the manifest
    files: int  # regular files and links in it; folders do not count
    unpacked_bytes: int  # bytes of its files
    contents_sha256: str  # digest of the manifest without its times, which is the same for a fresh clone
    packs: dict[str, int] = field(default_factory=dict)  # size of each pack with contents of it, by digest


class WorkspaceStore:
    """Workspaces on disk, addressed by content.

    Processes may share a root: files appear in it whole, by rename, and equal content has an equal name. `root`: folder
    of the store; made when first needed.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._incoming = root / _INCOMING
        self._packs = PackStore(root / _PACKS, self._incoming)

    def add(self, stream: BinaryIO, limits: WorkspaceLimits, *, expected_sha256: str | None = None) -> StoredWorkspace:
        """Store an uploaded archive as a manifest; if an equal one is stored already, return its metadata.

        Raises `OSError`: the disk is full or the stream broke; nothing is kept.

        Args:
            stream: The archive's bytes, read to the end in blocks.
            limits: Limits on the workspace; `max_upload_bytes` is enforced while reading.
            expected_sha256: The digest of the archive that the sender computed, if it sent one.
        """
        if expected_sha256 is not None:
            check_sha256(expected_sha256)
        with receive(stream, self._incoming, limits.max_upload_bytes) as upload:
            if expected_sha256 is not None:
                _check_intact(upload.sha256, expected_sha256)
            with upload.path.open("rb") as file, tempfile.NamedTemporaryFile(dir=self._incoming, delete=False) as pack:
                try:
                    return self._add_archive(file, pack, limits)
                finally:
                    Path(pack.name).unlink(missing_ok=True)

    def _add_archive(self, file: BinaryIO, pack_file: IO[bytes], limits: WorkspaceLimits) -> StoredWorkspace:
        data, contents = convert(file, pack_file, limits)
        manifest, sha256 = parse_manifest(data), hashlib.sha256(data).hexdigest()
        counts = manifest.inspect(limits)
        if stored := self.mark_used(sha256):
            return stored
        packs = {}
        if contents:
            os.fsync(pack_file.fileno())
            with Path(pack_file.name).open("rb") as written:
                digest = hashlib.file_digest(written, "sha256").hexdigest()
                pack = Pack(digest, written.tell(), contents)
            self._packs.keep(pack, Path(pack_file.name))
            packs[digest] = pack.size
        return self._keep(sha256, data, manifest, counts, packs)

    def find_missing(self, data: bytes, *, base: str | None, limits: WorkspaceLimits) -> list[str]:
        """Return the digests of the contents to send along with a manifest.

        Only contents of the base count as present: whoever may use that workspace may use its files, and nobody gets a
        file by naming its digest. `base`: digest of a stored workspace with some of the contents; None, or one that is
        not stored: send all.
        """
        manifest = parse_manifest(data)
        manifest.inspect(limits)
        wanted = manifest.contents()
        present = self._choose_packs(base, wanted)
        return [sha256 for sha256 in wanted if sha256 not in present]

    def add_manifest(
        self,
        data: bytes,
        contents: BinaryIO | None,
        limits: WorkspaceLimits,
        *,
        expected_sha256: str,
        base: str | None,
        may_be_stored: bool = True,
    ) -> StoredWorkspace:
        """Store a workspace as a manifest; if an equal one is stored already, return its metadata.

        Raises `OSError`: the disk is full; nothing is kept.

        Args:
            contents: An archive of the contents that `find_missing` returned, each named by its digest; None: none.
            expected_sha256: The digest of the manifest.
            base: As for `find_missing`.
            may_be_stored: False: an equal one is another's, so the contents have to be sent.
        """
        check_sha256(expected_sha256)
        _check_intact(hashlib.sha256(data).hexdigest(), expected_sha256)
        if may_be_stored and (stored := self.mark_used(expected_sha256)):
            return stored
        manifest = parse_manifest(data)
        counts = manifest.inspect(limits)
        wanted = manifest.contents()
        chosen = self._choose_packs(base, wanted)
        packs = {pack.sha256: pack.size for pack in chosen.values()}
        missing = wanted.keys() - chosen.keys()
        if contents is not None:
            sent = self._packs.add(contents, wanted, limits)
            packs[sent.sha256] = sent.size
            missing -= sent.contents.keys()
        self._protect(packs, missing)
        return self._keep(expected_sha256, data, manifest, counts, packs)

    def _keep(
        self, sha256: str, data: bytes, manifest: Manifest, counts: tuple[int, int], packs: dict[str, int]
    ) -> StoredWorkspace:
        stored = StoredWorkspace(sha256, len(data), *counts, manifest.contents_sha256(), packs)
        self._write_metadata(stored)
        write_atomically(self.path(sha256), data, folder=self._incoming)
        return stored

    def extract(self, sha256: str, destination: Path, limits: WorkspaceLimits) -> None:
        """Write the files of a stored workspace into a folder, all of them or nothing."""
        stored = self.stat(sha256)
        if stored is None:
            raise WorkspaceNotFound(f"The workspace {sha256} is not stored here.", field="workspaceSha256")
        manifest = parse_manifest(self.path(sha256).read_bytes())
        assemble(manifest, map(self._packs.path, stored.packs), destination, limits)

    def list_files(self, stored: StoredWorkspace) -> dict[str, FileContent]:
        """Return the files and links of a workspace, by path.

        Raises `FileNotFoundError`: it was discarded meanwhile.
        """
        return list_manifest(parse_manifest(self.path(stored.sha256).read_bytes()))

    def read_files(self, stored: StoredWorkspace, paths: Collection[str]) -> dict[str, bytes]:
        """Return the contents of some files of a workspace, by path; the caller knows that they are small.

        Raises `FileNotFoundError`: it was discarded meanwhile.
        """
        files = self.list_files(stored)
        digests = {path: files[path].digest for path in paths if path in files}
        contents = read_contents(map(self._packs.path, stored.packs), set(digests.values()))
        return {path: contents[digest] for path, digest in digests.items() if digest in contents}

    def record_sender(self, sha256: str, key_id: str) -> None:
        """Remember for a while, as long as temporary files are kept, who has sent a workspace."""
        (self._incoming / f"sent-{key_id}-{sha256}").touch()

    def was_sent_by(self, sha256: str, key_id: str) -> bool:
        check_sha256(sha256)
        return (self._incoming / f"sent-{key_id}-{sha256}").exists()

    def has(self, sha256: str) -> bool:
        return self.stat(sha256) is not None

    def path(self, sha256: str) -> Path:
        check_sha256(sha256)
        return self.root / sha256[:2] / sha256

    def pack_path(self, sha256: str) -> Path:
        check_sha256(sha256)
        return self._packs.path(sha256)

    def stat(self, sha256: str) -> StoredWorkspace | None:
        """Return the metadata of a stored workspace; None if it is not stored."""
        path = self.path(sha256)
        try:
            size = path.stat().st_size
            facts = json.loads(metadata_path(path).read_bytes())
            stored = StoredWorkspace(
                sha256,
                facts["size"],
                facts["files"],
                facts["unpacked_bytes"],
                facts["contents_sha256"],
                facts["packs"],
            )
        except (FileNotFoundError, KeyError, TypeError, ValueError):
            return None
        # A file that was truncated by a power cut must not count as stored.
        whole = stored.size == size and all(self._packs.has(*pack) for pack in stored.packs.items())
        return stored if whole else None

    def mark_used(self, sha256: str) -> StoredWorkspace | None:
        """Mark a workspace as used, because a new job will name it; protects it from `discard`.

        Returns its metadata; None if it is not stored.
        """
        try:
            os.utime(self.path(sha256))
        except FileNotFoundError:
            return None
        stored = self.stat(sha256)
        return stored if stored and all(map(self._packs.mark_used, stored.packs)) else None

    def stored(self) -> Iterator[StoredFile]:
        """Yield all manifests, in no particular order."""
        for folder in self.root.glob("[0-9a-f][0-9a-f]"):
            yield from list_files(folder)

    def unused_packs(self, *, unused_since: float, without: Collection[str] = ()) -> list[StoredFile]:
        """Return the packs that no manifest names and that were not used since a time (Unix seconds).

        `without`: digests of workspaces whose packs do not count as named.
        """
        # Listed first: a manifest stored later marks its packs as used, which protects them.
        unused = [pack for pack in self._packs.stored() if pack.used_at < unused_since]
        named: set[str] = set()
        for workspace in self.stored() if unused else ():
            if workspace.sha256 not in without and (workspace_stat := self.stat(workspace.sha256)):
                named.update(workspace_stat.packs)
        return [pack for pack in unused if pack.sha256 not in named]

    def discard_pack(self, sha256: str, *, unused_since: float) -> bool:
        """Delete a pack of `unused_packs` unless it was used meanwhile; returns whether it was deleted."""
        return self._packs.discard(sha256, unused_since=unused_since)

    def discard(self, sha256: str, *, unused_since: float) -> bool:
        """Delete a workspace that was not stored or used since a time (Unix seconds); returns whether it was deleted.

        The caller must know that no job needs it. A workspace that is used concurrently is kept.
        """
        path = self.path(sha256)
        gone = set_aside(path, self._incoming, unused_since)
        if gone:
            # Kept if an upload of the same workspace has just rewritten it.
            set_aside(metadata_path(path), self._incoming, unused_since)
        return gone

    def sweep_temporary(self, older_than_s: float) -> int:
        """Delete temporary files of uploads whose process died.

        `older_than_s`: seconds without a write after which an upload counts as dead. Returns number of deleted files.
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

    def _protect(self, packs: Collection[str], missing: Collection[str]) -> None:
        """Mark packs as used, before metadata names them: from then on no collection discards them."""
        if missing or not all(self._packs.mark_used(pack) for pack in packs):
            raise WorkspaceNotFound(
                f"{len(missing) or 'Some'} of the files' contents are not stored here. Ask which ones are missing "
                "(POST /workspaces/missing), and send them with the manifest.",
                field="contents",
            )

    def _choose_packs(self, base: str | None, wanted: dict[str, int]) -> dict[str, Pack]:
        """Return the packs of the base to use, by content: only those contents that the base itself names."""
        stored = None if base is None else self.stat(base)
        if stored is None:
            return {}
        try:
            named = parse_manifest(self.path(stored.sha256).read_bytes()).contents()
        except FileNotFoundError:  # discarded meanwhile
            return {}
        packs = [pack for sha256 in stored.packs if (pack := self._packs.read(sha256))]
        return choose_packs(packs, {sha256: size for sha256, size in wanted.items() if named.get(sha256) == size})

    def _write_metadata(self, stored: StoredWorkspace) -> None:
        path = self.path(stored.sha256)
        path.parent.mkdir(parents=True, exist_ok=True)
        self._incoming.mkdir(exist_ok=True)
        write_atomically(metadata_path(path), json.dumps(asdict(stored)).encode(), folder=self._incoming)


def _check_intact(sha256: str, expected: str) -> None:
    if sha256 != expected:
        raise WorkspaceInvalid(
            f"workspace: the upload was damaged in transit: its sha256 is {sha256}, not {expected}; send it again",
            field="workspace",
        )
