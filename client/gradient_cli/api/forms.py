from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import BinaryIO

_CHUNK_BYTES = 1 << 16


class Form:
    """A multipart form of JSON text and an archive.

    `sent`: called with the number of bytes of the archive sent so far.
    """

    def __init__(self, text_part: str, text: bytes, file_part: str, path: str, sent: Callable[[int], None]) -> None:
        with open(path, "rb") as file:
            zipped = file.read(2) == b"PK"
        suffix, kind = (".zip", "application/zip") if zipped else (".tar.gz", "application/gzip")
        boundary = os.urandom(16).hex()
        before = (
            f'--{boundary}\r\nContent-Disposition: form-data; name="{text_part}"\r\n'
            "Content-Type: application/json\r\n\r\n"
        )
        between = (
            f'\r\n--{boundary}\r\nContent-Disposition: form-data; name="{file_part}"; '
            f'filename="{file_part}{suffix}"\r\nContent-Type: {kind}\r\n\r\n'
        )
        self._before = before.encode() + text + between.encode()
        self._after = f"\r\n--{boundary}--\r\n".encode()
        self._path = path
        self._size = os.path.getsize(path)
        self._sent = sent
        self.headers = {
            "Content-Type": f"multipart/form-data; boundary={boundary}",
            "Content-Length": str(len(self._before) + self._size + len(self._after)),
        }

    def chunks(self) -> Iterator[bytes]:
        yield self._before
        with open(self._path, "rb") as file:
            yield from file_chunks(file, self._size, self._sent)
        yield self._after


def file_chunks(file: BinaryIO, size: int, sent: Callable[[int], None]) -> Iterator[bytes]:
    """Yield a file's first `size` bytes: it may be growing."""
    done = 0
    while piece := file.read(min(_CHUNK_BYTES, size - done)):
        yield piece
        done += len(piece)
        sent(done)
