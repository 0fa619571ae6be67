"""SHA-256 of files."""

from __future__ import annotations

import hashlib

TYPE_CHECKING = False  # the name type checkers know; importing typing for it would slow every start
if TYPE_CHECKING:
    from typing import BinaryIO

_CHUNK_BYTES = 1 << 20


def sha256(file: BinaryIO) -> str:
    """Return the digest of the rest of an open file, in hexadecimal."""
    digest = hashlib.sha256()
    while chunk := file.read(_CHUNK_BYTES):
        digest.update(chunk)
    return digest.hexdigest()
