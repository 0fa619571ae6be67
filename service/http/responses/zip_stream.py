"""A job's artifacts as one zip, created while it is sent."""

import re
import struct
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from io import RawIOBase
from stat import S_IFDIR, S_IFREG
from typing import TYPE_CHECKING
from zipfile import ZIP_DEFLATED, ZIP_STORED, ZipFile, ZipInfo

from core.errors import ArtifactNotFound
from core.storage.artifacts.store import ArtifactFile, ArtifactFolder, ArtifactStore

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

_BLOCK = 256 * 1024
_UNSAFE = re.compile(r"[\\\x00-\x1f\x7f]")
_COMPRESSED_SUFFIXES = (
    ".gz",
    ".zip",
    ".png",
    ".jpg",
    ".jpeg",
    ".webp",
    ".gif",
    ".keras",
    ".h5",
    ".npz",
    ".mp4",
    ".zst",
)
_FIRST_MS, _LAST_MS = 315_532_800_000, 4_354_819_198_000  # times that a zip can hold: of 1980 to 2107
_MAX_SECONDS = 2**31 - 1
_TIMESTAMP, _HAS_MTIME, _FOLDER = 0x5455, 1, 0x10
_LEVEL = 1  # a zip is made while its reader waits


class _Pending(RawIOBase):
    """The part of the zip that was written and not sent; without `seek` and `read`, so that it is a stream."""

    def __init__(self) -> None:
        super().__init__()
        self._written = bytearray()

    def writable(self) -> bool:
        return True

    def write(self, data: "ReadableBuffer") -> int:
        self._written += data
        return len(memoryview(data))

    def take(self) -> bytes:
        data = bytes(self._written)
        self._written.clear()
        return data


def zip_blocks(
    store: ArtifactStore, job_id: str, attempt: int, folder: str, *, selected: Callable[[str], bool]
) -> Iterator[bytes]:
    """Yield the bytes of a zip with the files and folders of an attempt whose path `selected` accepts.

    They are in a folder of the name `folder`. One file is open at a time and one block in memory; only the list of
    names at the end grows with their number.
    """
    pending = _Pending()
    with ZipFile(pending, "w", compresslevel=_LEVEL) as archive:
        for inside in store.folders(job_id, attempt):
            if selected(f"{inside.path}/"):
                archive.writestr(_entry(inside, folder), b"")
        for file in store.walk(job_id, attempt):
            if not selected(file.path):
                continue
            blocks = _blocks(store, job_id, attempt, file)
            if next(blocks, None) is None:
                continue
            with archive.open(_entry(file, folder), "w", force_zip64=True) as target:  # a running job's file may grow
                for block in blocks:
                    target.write(block)
                    yield pending.take()
            yield pending.take()
    yield pending.take()


def _entry(stored: ArtifactFile | ArtifactFolder, folder: str) -> ZipInfo:
    is_file = isinstance(stored, ArtifactFile)
    at = datetime.fromtimestamp(min(max(stored.mtime_ms, _FIRST_MS), _LAST_MS) / 1000, UTC)
    name = f"{folder}/{safe_name(stored.path)}" + "/" * (not is_file)
    entry = ZipInfo(name, (at.year, at.month, at.day, at.hour, at.minute, at.second))
    entry.external_attr = (stored.mode | (S_IFREG if is_file else S_IFDIR)) << 16 | (0 if is_file else _FOLDER)
    seconds = stored.mtime_ms // 1000
    if 0 <= seconds <= _MAX_SECONDS:  # exact, and of no time zone
        entry.extra = struct.pack("<HHBl", _TIMESTAMP, 5, _HAS_MTIME, seconds)
    packed = not is_file or stored.path.lower().endswith(_COMPRESSED_SUFFIXES)
    entry.compress_type = ZIP_STORED if packed else ZIP_DEFLATED
    return entry


def safe_name(path: str) -> str:
    """Make a path safe to unpack on every system: no `..`, no leading slash, backslashes or control characters.

    Different paths stay different: in them, a `%` before two hexadecimal digits is written `%25`.
    """
    parts = [_UNSAFE.sub(lambda match: f"%{ord(match[0]):02X}", part) for part in path.split("/")]
    return "/".join(part for part in parts if part not in {"", ".", ".."})


def _blocks(store: ArtifactStore, job_id: str, attempt: int, file: ArtifactFile) -> Iterator[bytes]:
    """Yield nothing if the file is not there, or an empty block and those of the file."""
    try:
        opened = store.open(job_id, attempt, file.path)
    except ArtifactNotFound:
        if file.sha256 is not None:
            raise  # deleted during the download: break off, so that the zip is not taken as complete
        return  # the running job has deleted it
    with opened.file:
        yield b""
        while block := opened.file.read(_BLOCK):
            yield block
