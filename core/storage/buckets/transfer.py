"""Transfers single files: sends them, hashing on the way, reads them in parts, and signs URLs to read them."""

import hashlib
import io
import os
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from typing import Any, BinaryIO, cast

import obstore

from core.errors import StoreUnavailable
from core.storage.buckets.client import REPLACED, Bucket, translate_errors
from core.storage.buckets.uploader import FileChanged

_PART = 8 << 20  # bytes of a file that are sent in one request, and held in memory
_MAX_PARTS = 9_000  # S3 takes 10,000
_PARALLEL_PARTS = 2
_BLOCK = 1 << 20
_FIRST_READ = 256 * 1024
_LARGEST_READ = 8 << 20


def upload_file(bucket: Bucket, name: str, file: BinaryIO, attributes: dict[str, str]) -> str:
    """Upload an open file, and return the sha256 of what was sent; a part that breaks off is sent again.

    Raises `FileChanged`: the file was written to meanwhile; what was sent may match none of its states.
    """
    before = os.fstat(file.fileno())
    digest = hashlib.sha256()

    def blocks() -> Iterator[bytes]:
        left = before.st_size
        while left and (block := file.read(min(_BLOCK, left))):
            digest.update(block)
            left -= len(block)
            yield block

    content = b"".join(blocks()) if before.st_size <= _PART else blocks()
    part = max(_PART, -(-before.st_size // _MAX_PARTS))
    with translate_errors(f"sending {name!r}"):
        bucket.put(name, content, attributes=attributes, chunk_size=part, max_concurrency=_PARALLEL_PARTS)
    after = os.fstat(file.fileno())
    if (file.tell(), after.st_size, after.st_mtime_ns) != (before.st_size, before.st_size, before.st_mtime_ns):
        raise FileChanged
    return digest.hexdigest()


def open_object(bucket: Bucket, name: str) -> tuple[BinaryIO, int] | None:
    """Return an object opened for reading, and its size; None: there is none of this name."""
    with translate_errors(f"looking for {name!r}"), suppress(FileNotFoundError):
        meta = bucket.head(name)
        file = RemoteFile(bucket, name, meta["size"], meta["e_tag"])
        return cast("BinaryIO", io.BufferedReader(file)), meta["size"]
    return None


def sign_download(bucket: Bucket, name: str, valid: timedelta) -> str | None:
    """Return a URL with which anybody can read an object for a while; None: these credentials cannot sign."""
    with suppress(StoreUnavailable), translate_errors("signing a URL"):
        return obstore.sign(bucket, "GET", name, valid)
    return None


class RemoteFile(io.RawIOBase):
    """An object opened for reading; parts are fetched on demand, larger ones the longer it is read in sequence.

    Only the version with this `e_tag`: a file that is replaced while it is read would be half of each.
    """

    def __init__(self, bucket: Bucket, name: str, size: int, e_tag: str | None) -> None:
        self._bucket = bucket
        self._name = name
        self._size = size
        self._e_tag = e_tag
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
        end = min(self._at + self._next_read, self._size)
        with translate_errors(f"reading {self._name!r}"):
            try:
                result = self._bucket.get(self._name, options={"range": (self._at, end), "if_match": self._e_tag})
                self._buffer = result.bytes().to_bytes()
            except (FileNotFoundError, *REPLACED) as error:
                raise StoreUnavailable(f"{self._name!r} was removed or replaced while it was being read.") from error
        self._buffer_at = self._at
