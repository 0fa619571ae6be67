"""Public names of files, as the server writes them: plain text, with `%XX` for what is not."""

from __future__ import annotations

import os
import re
import sys

_ESCAPED = re.compile(r"[\udc80-\udcff\\]|%(?=[0-9A-Fa-f]{2})")
_ESCAPE = re.compile(rb"%([0-9A-F]{2})")


def to_public_name(name: str) -> str:
    """Return the public name of a local file or folder."""
    return _ESCAPED.sub(lambda match: f"%{ord(match[0]) & 0xFF:02X}", name)


def to_local_name(name: str) -> str:
    """Return the local name with this public name; the public name itself if no local name has it.

    So `%2F`, `%00` and `%2E%2E` stay as they are: no separator, NUL or `..` comes out.
    """
    local = os.fsdecode(_ESCAPE.sub(lambda match: bytes([int(match[1], 16)]), os.fsencode(name)))
    if sys.platform == "win32" or (sys.platform == "darwin" and not local.isprintable()):
        return name  # there a backslash is a separator; macOS refuses names that are not UTF-8
    return local if to_public_name(local) == name else name
