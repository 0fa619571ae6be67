"""Public paths of artifacts.

A public path is the file's path with `/` between folders. A byte that is not UTF-8, a backslash (a separator on
some systems) and a `%` that could be mistaken for an escape are written `%XX`, so every file
has exactly one public path and every public path is plain text.
"""

import os
import re

from core.errors import ArtifactNotFound
from core.system.untrusted_folders import MAX_DEPTH

_ESCAPED = re.compile(r"[\udc80-\udcff\\]|%(?=[0-9A-Fa-f]{2})")
_ESCAPE = re.compile(rb"%([0-9A-F]{2})")
_NAME_BYTES = 255


def to_public_path(name: str) -> str:
    """Return the public path of a file; `name` is its path as the operating system decoded it."""
    return _ESCAPED.sub(lambda match: f"%{ord(match[0]) & 0xFF:02X}", name)


def parse_public_path(path: str) -> list[str]:
    """Split a public path into the names of its folders and its file.

    Raises `ArtifactNotFound`: no file can have this public path: it is absolute, leads upwards, holds a NUL or a
    backslash, or is not the canonical spelling.
    """
    try:
        raw = _ESCAPE.sub(lambda match: bytes([int(match[1], 16)]), path.encode())
    except UnicodeEncodeError:
        raise not_found(path) from None
    parts = os.fsdecode(raw).split("/")
    usable = all(
        part not in {"", ".", ".."} and "\0" not in part and len(os.fsencode(part)) <= _NAME_BYTES for part in parts
    )
    if not usable or len(parts) > MAX_DEPTH + 1 or to_public_path("/".join(parts)) != path:
        raise not_found(path)
    return parts


def not_found(path: str) -> ArtifactNotFound:
    return ArtifactNotFound(f"No artifact at {path[:200]!r}. List the job's artifacts to see their paths.")
