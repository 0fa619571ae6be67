"""Sends single files with a checksum, hashing on the way, and removes objects."""

import hashlib
import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import BinaryIO

from google.api_core.exceptions import NotFound
from google.cloud import storage

from core.storage.gcs.client import translate_errors

CHUNK = 16 * 1024**2  # size of one part of a resumable upload, in bytes; held in memory
PARALLEL_FILES = 8  # files that are uploaded or downloaded at once; each may hold a part of an upload in memory


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


def remove_all(blobs: Iterable[storage.Blob], parallel: int) -> None:
    """Remove objects; missing ones are not an error."""
    with translate_errors("removing"), ThreadPoolExecutor(parallel, thread_name_prefix="remove") as pool:
        for _ in pool.map(_remove, blobs):
            pass


def _remove(blob: storage.Blob) -> None:
    with suppress(NotFound):
        blob.delete()
