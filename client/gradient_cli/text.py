"""Text of files that an editor of any system wrote."""

from __future__ import annotations

import codecs
import sys

from gradient_cli import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Any


def decode(data: bytes, errors: str = "strict") -> str:
    """Decode UTF-8, or UTF-16 that starts with a byte-order mark; the mark itself is left out.

    Raises `UnicodeDecodeError`: it is neither.
    """
    utf_16 = data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    return data.decode("utf-16" if utf_16 else "utf-8-sig", errors)


def parse_toml(text: str) -> dict[str, Any]:
    if sys.version_info >= (3, 11):
        import tomllib  # novermin
    else:
        import tomli as tomllib

    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None
