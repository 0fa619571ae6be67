"""Bodies of uploads: forms with an archive, and files, in chunks."""

from __future__ import annotations

import json
import os

TYPE_CHECKING = False  # the name type checkers know; importing typing for it would slow every start
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any, BinaryIO

_CHUNK_BYTES = 1 << 16


def multipart_body(spec: dict[str, Any], path: str, boundary: str) -> tuple[bytes, bytes]:
    """Return what comes before and after the archive in a form with a spec and an archive."""
    with open(path, "rb") as file:
        zipped = file.read(2) == b"PK"
    name, kind = ("workspace.zip", "application/zip") if zipped else ("workspace.tar.gz", "application/gzip")
    before = (
        f'--{boundary}\r\nContent-Disposition: form-data; name="spec"\r\n'
        f"Content-Type: application/json\r\n\r\n{json.dumps(spec)}\r\n"
        f'--{boundary}\r\nContent-Disposition: form-data; name="workspace"; filename="{name}"\r\n'
        f"Content-Type: {kind}\r\n\r\n"
    )
    return before.encode(), f"\r\n--{boundary}--\r\n".encode()


def body_chunks(before: bytes, path: str, after: bytes, sent: Callable[[int], None]) -> Iterator[bytes]:
    """Yield a form with an archive in its middle."""
    yield before
    with open(path, "rb") as file:
        yield from file_chunks(file, os.path.getsize(path), sent)
    yield after


def file_chunks(file: BinaryIO, size: int, sent: Callable[[int], None]) -> Iterator[bytes]:
    """Yield a file's first `size` bytes: it may be growing."""
    done = 0
    while piece := file.read(min(_CHUNK_BYTES, size - done)):
        yield piece
        done += len(piece)
        sent(done)
