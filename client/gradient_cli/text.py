"""Text of files that an editor of any system wrote."""

from __future__ import annotations

import codecs


def decode(data: bytes, errors: str = "strict") -> str:
    """Decode UTF-8, or UTF-16 that starts with a byte-order mark; the mark itself is left out.

    Raises:
        UnicodeDecodeError: It is neither.
    """
    utf_16 = data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    return data.decode("utf-16" if utf_16 else "utf-8-sig", errors)
