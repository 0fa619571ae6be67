from __future__ import annotations

import hashlib
import sys
from typing import BinaryIO

_CHUNK_BYTES = 1 << 20


def sha256(file: BinaryIO, size: int | None = None) -> str:
    """Return the digest of the rest of an open file, or of so many bytes of it, in hexadecimal."""
    digest, left = hashlib.sha256(), sys.maxsize if size is None else size
    while chunk := file.read(min(left, _CHUNK_BYTES)):
        digest.update(chunk)
        left -= len(chunk)
    return digest.hexdigest()
