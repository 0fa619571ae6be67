"""The manifest of a workspace folder, with a cache of digests: only files that have changed are read again."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from gradient_cli import config
from gradient_cli.errors import ClientError
from gradient_cli.workspace.packing.archive import WorkspaceEntry, WorkspaceFolder, changed_error, open_file
from gradient_cli.workspace.packing.digest import sha256

_MAX_FOLDERS = 200
# A file changed this shortly before the scan may change again without a new time: clocks of file systems are coarse.
_RACY_NS = 2_000_000_000
_SMALL_BYTES = 1 << 16
_MOST_KEPT_BYTES = 32 << 20


class FolderManifest:
    """The files of a folder with their digests.

    `progress`: called with the number of bytes of the folder's files read so far. `data`: the manifest as JSON text;
    the same files give the same text.
    """

    def __init__(self, folder: WorkspaceFolder, url: str, progress: Callable[[int], None]) -> None:
        self.root = folder.root
        cached = _read_cache(folder.root)
        cached_files, bases = cached.get("files"), cached.get("uploaded")
        self._url = url
        self._bases: dict[str, str] = bases if isinstance(bases, dict) else {}
        # digest of the folder's manifest that was uploaded to this server last; None: none was
        self.base = self._bases.get(url)
        self.contents: dict[str, WorkspaceEntry] = {}  # a file of each content, by digest
        self.read: dict[str, bytes] = {}  # contents of small files that were read, by digest; 32 MiB at most
        self._kept = 0
        self._digests: dict[str, list[Any]] = {}
        self._changed = False
        files = self._read_files(folder, cached_files if isinstance(cached_files, dict) else {}, progress)
        folders = [entry for entry in folder.entries if entry.kind == "folder"]
        fields = {
            "files": files,
            "folders": [(entry.path, entry.mode) for entry in folders],
            "links": [(entry.path, entry.target) for entry in folder.entries if entry.kind == "link"],
            "times": [entry.modified for entry in (*folder.files, *folders)],
        }
        try:
            self.data = json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode()
        except UnicodeEncodeError:
            raise _not_unicode(folder) from None
        self.sha256 = hashlib.sha256(self.data).hexdigest()  # its digest
        if self._changed:
            self._write_cache()

    def remember(self) -> None:
        """Store that this manifest is uploaded: the next one is based on it."""
        self.base = self._bases[self._url] = self.sha256
        self._write_cache()

    def _read_files(
        self, folder: WorkspaceFolder, cached: dict[str, Any], progress: Callable[[int], None]
    ) -> list[tuple[str, int, int, str]]:
        done = 0
        files = []
        for entry in folder.files:
            facts = [entry.size, *entry.version]
            before = cached.get(entry.path)
            if isinstance(before, list) and before[:-1] == facts:
                digest = before[-1]
            else:
                digest = self._hash(entry)
                self._changed = True
            if max(entry.version[1:]) < folder.scanned_at - _RACY_NS:
                self._digests[entry.path] = [*facts, digest]
            self.contents.setdefault(digest, entry)
            files.append((entry.path, entry.mode, entry.size, digest))
            done += entry.size
            progress(done)
        return files

    def _hash(self, entry: WorkspaceEntry) -> str:
        with open_file(self.root, entry) as file:
            if entry.size >= _SMALL_BYTES:
                return sha256(file, entry.size)
            # A small file is not read into a large buffer: thousands of them would take twice as long. It is kept for
            # the upload, which would otherwise open and read it again.
            content = file.read(entry.size)
        if len(content) != entry.size:
            raise changed_error(entry)
        digest = hashlib.sha256(content).hexdigest()
        if self._kept + entry.size <= _MOST_KEPT_BYTES:
            self.read[digest] = content
            self._kept += entry.size
        return digest

    def _write_cache(self) -> None:
        path = _cache_path(self.root)
        with suppress(OSError):  # without it, the next submission only takes longer
            config.write_json(path, {"uploaded": self._bases, "files": self._digests}, indent=None)
            folder = os.path.dirname(path)
            with os.scandir(folder) as entries:
                caches = sorted(entries, key=lambda cache: cache.stat().st_mtime)
            for cache in caches[:-_MAX_FOLDERS]:
                os.unlink(cache.path)


def _read_cache(root: str) -> dict[str, Any]:
    with suppress(ClientError):  # a damaged cache only costs time
        return config.read_json(_cache_path(root))
    return {}


def _cache_path(root: str) -> str:
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    name = hashlib.sha256(os.fsencode(root)).hexdigest()[:32]
    return os.path.join(base, "gradient", "folders", f"{name}.json")


def _not_unicode(folder: WorkspaceFolder) -> ClientError:
    names = (text for entry in folder.entries for text in (entry.path, entry.target))
    name = next(text for text in names if not _is_unicode(text))
    return ClientError(
        f"workspace: the name {os.fsencode(name)!r} is not valid UTF-8",
        hint="Rename the file, or exclude it with a .gradientignore.",
    )


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
