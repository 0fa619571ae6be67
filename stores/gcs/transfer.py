"""Single files to and from a bucket: sent with a checksum and hashed on the way, read in parts."""

import hashlib
import io
import os
from typing import Any, BinaryIO

from google.api_core.exceptions import NotFound
from google.cloud import storage

from core.errors import StoreUnavailable
from stores.gcs.client import answering

CHUNK = 16 * 1024**2
"""Bytes of one part of a resumable upload; held in memory."""
_FIRST_READ = 256 * 1024
_LARGEST_READ = 8 * 1024**2


class Changed(Exception):
    """The file is not what it was when its sending began."""


def send(blob: storage.Blob, file: BinaryIO) -> str:
    """Upload an open file; what arrives is compared by crc32c, and larger files go on where they broke off.

    Args:
        blob: Where to.
        file: Open at its start.

    Returns:
        The sha256 of what was sent.

    Raises:
        Changed: The file was written to meanwhile; what was sent need not be what it ever held.
        StoreUnavailable: The bucket does not take it.
    """
    before = os.fstat(file.fileno())
    hashing = _Hashing(file, before.st_size)
    blob.chunk_size = CHUNK
    with answering(f"sending {blob.name!r}"):
        try:
            blob.upload_from_file(
                hashing, size=before.st_size, content_type="application/octet-stream", checksum="crc32c"
            )
        except ValueError as error:  # it has become shorter than it was
            raise Changed from error
    after = os.fstat(file.fileno())
    if (hashing.position, after.st_size, after.st_mtime_ns) != (before.st_size, before.st_size, before.st_mtime_ns):
        raise Changed
    return hashing.sha256


class _Hashing:
    """A file that is hashed while it is read, and not read past the size it had."""

    def __init__(self, file: BinaryIO, size: int) -> None:
        self._file = file
        self._size = size
        self._digest = hashlib.sha256()
        self.position = 0
        """Up to where it is hashed."""

    @property
    def sha256(self) -> str:
        return self._digest.hexdigest()

    def read(self, size: int = -1) -> bytes:
        at = self._file.tell()
        left = self._size - at
        data = self._file.read(left if size < 0 else min(size, left))
        # A client that repeats a part reads it again: that is hashed once.
        self._digest.update(data[max(0, self.position - at) :])
        self.position = max(self.position, at + len(data))
        return data

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()


class RemoteFile(io.RawIOBase):
    """An object opened for reading: parts are fetched as they are read, larger ones the longer it is read in order.

    Args:
        blob: The object, in one generation.
        size: Its bytes.
    """

    def __init__(self, blob: storage.Blob, size: int) -> None:
        self._blob = blob
        self._size = size
        self._at = 0
        self._held = b""
        self._held_at = 0
        self._next_read = _FIRST_READ

    def readable(self) -> bool:
        """It is."""
        return True

    def seekable(self) -> bool:
        """It is."""
        return True

    def tell(self) -> int:
        """Where the next read begins."""
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Go elsewhere."""
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        self._at = max(0, start + offset)
        return self._at

    def readinto(self, buffer: Any) -> int:  # noqa: ANN401 - io declares it so
        """Read what fits, at most what is held.

        Raises:
            StoreUnavailable: The bucket does not give it, or no longer has it.
        """
        if self._at >= self._size or not len(buffer):
            return 0
        offset = self._at - self._held_at
        if not 0 <= offset < len(self._held):
            self._fetch()
            offset = 0
        part = self._held[offset : offset + len(buffer)]
        buffer[: len(part)] = part
        self._at += len(part)
        return len(part)

    def _fetch(self) -> None:
        in_order = self._at == self._held_at + len(self._held) and self._at > 0
        self._next_read = min(self._next_read * 2, _LARGEST_READ) if in_order else _FIRST_READ
        end = min(self._at + self._next_read, self._size) - 1
        with answering(f"reading {self._blob.name!r}"):
            try:
                # A part has no checksum of its own to be compared with.
                self._held = self._blob.download_as_bytes(start=self._at, end=end, checksum=None, raw_download=True)
            except NotFound as error:
                raise StoreUnavailable(f"{self._blob.name!r} was removed or replaced while it was read.") from error
        self._held_at = self._at
