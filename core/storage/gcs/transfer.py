"""Transfers single files: sends them with a checksum, hashing on the way, and reads them in parts."""

import hashlib
import io
import os
from typing import Any, BinaryIO

from google.api_core.exceptions import NotFound
from google.cloud import storage

from core.errors import StoreUnavailable
from core.storage.gcs.client import translate_errors

CHUNK = 16 * 1024**2  # size of one part of a resumable upload, in bytes; held in memory
PARALLEL_FILES = 8  # files that are uploaded or downloaded at once; each may hold a part of an upload in memory
_FIRST_READ = 256 * 1024
_LARGEST_READ = 8 * 1024**2


class FileChanged(Exception):
    """The file changed while it was being sent."""


def upload_file(blob: storage.Blob, file: BinaryIO) -> str:
    """Upload an open file, verified by crc32c; interrupted uploads of larger files resume.

    Returns the sha256 of what was sent. Raises `FileChanged`: the file was written to meanwhile; what was sent may
    match none of its states.
    """
    before = os.fstat(file.fileno())
    hashing = _Hashing(file, before.st_size)
    blob.chunk_size = CHUNK
    with translate_errors(f"sending {blob.name!r}"):
        try:
            blob.upload_from_file(
                hashing, size=before.st_size, content_type="application/octet-stream", checksum="crc32c"
            )
        except ValueError as error:  # the file became shorter
            raise FileChanged from error
    after = os.fstat(file.fileno())
    if (hashing.position, after.st_size, after.st_mtime_ns) != (before.st_size, before.st_size, before.st_mtime_ns):
        raise FileChanged
    return hashing.sha256


class _Hashing:
    """Hashes a file while it is read, and stops at its original size."""

    def __init__(self, file: BinaryIO, size: int) -> None:
        self._file = file
        self._size = size
        self._digest = hashlib.sha256()
        self.position = 0  # offset up to which the file is hashed

    @property
    def sha256(self) -> str:
        return self._digest.hexdigest()

    def read(self, size: int = -1) -> bytes:
        at = self._file.tell()
        left = self._size - at
        data = self._file.read(left if size < 0 else min(size, left))
        # A client that repeats a part reads it again, but it must be hashed once.
        self._digest.update(data[max(0, self.position - at) :])
        self.position = max(self.position, at + len(data))
        return data

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()


class RemoteFile(io.RawIOBase):
    """An object opened for reading; parts are fetched on demand, larger ones the longer it is read in sequence.

    `size`: its bytes.
    """

    def __init__(self, blob: storage.Blob, size: int) -> None:
        self._blob = blob
        self._size = size
        self._at = 0
        self._buffer = b""
        self._buffer_at = 0
        self._next_read = _FIRST_READ

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        self._at = max(0, start + offset)
        return self._at

    def readinto(self, buffer: Any) -> int:  # noqa: ANN401 - io declares it so
        if self._at >= self._size or not len(buffer):
            return 0
        offset = self._at - self._buffer_at
        if not 0 <= offset < len(self._buffer):
            self._fetch()
            offset = 0
        part = self._buffer[offset : offset + len(buffer)]
        buffer[: len(part)] = part
        self._at += len(part)
        return len(part)

    def _fetch(self) -> None:
        in_order = self._at == self._buffer_at + len(self._buffer) and self._at > 0
        self._next_read = min(self._next_read * 2, _LARGEST_READ) if in_order else _FIRST_READ
        end = min(self._at + self._next_read, self._size) - 1
        with translate_errors(f"reading {self._blob.name!r}"):
            try:
                # A part has no checksum to compare with.
                self._buffer = self._blob.download_as_bytes(start=self._at, end=end, checksum=None, raw_download=True)
            except NotFound as error:
                raise StoreUnavailable(f"{self._blob.name!r} was removed or replaced while it was read.") from error
        self._buffer_at = self._at
