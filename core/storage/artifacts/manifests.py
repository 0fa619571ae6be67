"""File lists on disk: a header, then JSON lines sorted by path; pages are found by binary search.

A manifest is such a list with a sha256 for every file; it is written last, and replaced only when files are deleted.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Literal, NamedTuple

from core.storage.artifacts.scan import Skipped
from core.system.filesystem import write_atomically

MANIFEST, LISTING = "manifest.jsonl", "listing.jsonl"
"""Names of the lists of an attempt that is closed, and of one that is not."""

ArtifactsState = Literal["none", "partial", "complete"]

_FORMAT = "gradient-artifacts"
_VERSION = 1
_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


class ArtifactFile(NamedTuple):
    """A stored file: public path, size in bytes, modification time in Unix milliseconds, sha256 once closed."""

    path: str
    size: int
    mtime_ms: int
    sha256: str | None
    mode: int = 0o644  # permission bits


class ArtifactFolder(NamedTuple):
    """A folder with its metadata, also an empty one: public path, modification time in Unix milliseconds, mode."""

    path: str
    mtime_ms: int
    mode: int


@dataclass(frozen=True)
class Manifest:
    """The header of a list."""

    # `complete` if everything that should be kept is stored; else `partial`, and `skipped` lists the rest
    state: ArtifactsState
    files: int
    bytes: int
    skipped: tuple[Skipped, ...]  # files that are not kept, and why
    folders: tuple[ArtifactFolder, ...] = ()  # sorted by path


def reduced(manifest: Manifest, files: Collection[ArtifactFile], kept: Collection[ArtifactFile]) -> Manifest:
    """Return the header of what is kept of a list's files; folders go with the last of their files."""
    emptied = _folders_of(files) - _folders_of(kept)
    folders = tuple(folder for folder in manifest.folders if folder.path not in emptied)
    return replace(manifest, files=len(kept), bytes=sum(file.size for file in kept), folders=folders)


def _folders_of(files: Collection[ArtifactFile]) -> set[str]:
    return {
        "/".join(parts[:depth]) for parts in (file.path.split("/") for file in files) for depth in range(1, len(parts))
    }


def write_manifest(
    path: Path, manifest: Manifest, files: Iterable[ArtifactFile], *, durable: bool, replace: bool = True
) -> None:
    """Write a list atomically. Raises `FileExistsError`: there is one, and `replace` is False."""
    header = {
        "format": _FORMAT,
        "version": _VERSION,
        "state": manifest.state,
        "files": manifest.files,
        "bytes": manifest.bytes,
        "skipped": [skipped._asdict() for skipped in manifest.skipped],
        "folders": manifest.folders,
    }
    lines = (_line(file._asdict()) for file in files)
    write_atomically(path, chain([_line(header)], lines), durable=durable, replace=replace)


class ManifestReader:
    """A list opened for reading. Raises `FileNotFoundError`: there is none."""

    def __init__(self, path: Path) -> None:
        self._file: BinaryIO = path.open("rb")
        try:
            header = json.loads(self._file.readline())
            self._first = self._file.tell()
            self._end = self._file.seek(0, os.SEEK_END)
            self.manifest = Manifest(
                state=header["state"],
                files=header["files"],
                bytes=header["bytes"],
                skipped=tuple(Skipped(**skipped) for skipped in header["skipped"]),
                folders=tuple(ArtifactFolder(*folder) for folder in header.get("folders", ())),
            )
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> ManifestReader:  # noqa: PYI034 - Python 3.9 has no Self
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def files(self, start: str = "") -> Iterator[ArtifactFile]:
        self._file.seek(self._find(start) if start else self._first)
        for line in self._file:
            yield ArtifactFile(**json.loads(line))

    def page(self, prefix: str, after: str | None, limit: int) -> tuple[list[ArtifactFile], str | None]:
        """Return files whose path starts with `prefix` and comes after `after`, and the `after` of the next page."""
        start = prefix if after is None else max(prefix, after + "\0")
        files = list(islice((file for file in self._files_with_prefix(start, prefix)), limit + 1))
        if len(files) <= limit:
            return files, None
        return files[:limit], files[limit - 1].path if limit > 0 else after

    def get(self, path: str) -> ArtifactFile | None:
        file = next(self.files(path), None)
        return file if file and file.path == path else None

    def _files_with_prefix(self, start: str, prefix: str) -> Iterator[ArtifactFile]:
        for file in self.files(start):
            if not file.path.startswith(prefix):
                return
            yield file

    def _find(self, path: str) -> int:
        """Return the offset of the first line whose path is `path` or comes after it."""
        low, high = self._first, self._end
        while low < high:
            middle = (low + high) // 2
            self._file.seek(middle - 1)
            start = middle - 1 + len(self._file.readline())
            if start >= high:
                high = middle
                continue
            line = self._file.readline()
            if json.loads(line)["path"] < path:
                low = start + len(line)
            else:
                high = middle
        return low


def _line(value: dict[str, object]) -> bytes:
    return _encode(value).encode() + b"\n"
