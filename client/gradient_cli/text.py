"""Text of files that an editor of any system wrote."""

from __future__ import annotations

import codecs
import re
import sys
from typing import Any

_MAX_TOML = 1024**2  # characters
_MAX_DOTS = 100  # of a key: tomllib takes memory quadratic in the parts of a key
_MAX_DOTS_OF_ALL = 20_000  # it takes a kilobyte for each part
_MAX_DEPTH = 100
_SYMBOL = re.compile(r"""\"{3}|'{3}|["'#\n.,=\[\]{}]""")
_ENDS = {
    '"': re.compile(r'[^"\\\n]*(?:\\.[^"\\\n]*)*["\n]', re.DOTALL),
    "'": re.compile(r"[^'\n]*['\n]"),
    '"""': re.compile(r'[^"\\]*(?:(?:\\.|"(?!""))[^"\\]*)*"{3,5}', re.DOTALL),
    "'''": re.compile(r".*?'{3,5}", re.DOTALL),
    "#": re.compile(r"[^\n]*"),
}


def decode(data: bytes, errors: str = "strict") -> str:
    """Decode UTF-8, or UTF-16 that starts with a byte-order mark; the mark itself is left out.

    Raises `UnicodeDecodeError`: it is neither.
    """
    utf_16 = data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    return data.decode("utf-16" if utf_16 else "utf-8-sig", errors)


def parse_toml(text: str) -> dict[str, Any]:
    """Parse TOML, of any author. Raises `ValueError`: it is not valid, or larger than a person would write it."""
    if sys.version_info >= (3, 11):
        import tomllib  # novermin
    else:
        import tomli as tomllib

    _check_toml(text)
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _check_toml(text: str) -> None:
    if len(text) > _MAX_TOML:
        raise ValueError(f"more than {_MAX_TOML:,} characters")
    at = depth = dots = dots_of_all = 0
    while match := _SYMBOL.search(text, at):
        symbol, at = match[0], match.end()
        if symbol in _ENDS:
            end = _ENDS[symbol].match(text, at)
            if end is None:
                return  # a string does not end, which tomllib says
            at = end.end()
            dots = 0 if end[0].endswith("\n") else dots  # a part of a key may be a string
        elif symbol == ".":
            dots, dots_of_all = dots + 1, dots_of_all + 1
            if dots > _MAX_DOTS or dots_of_all > _MAX_DOTS_OF_ALL:
                line = text.count("\n", 0, at) + 1
                most = f"a key can have at most {_MAX_DOTS}, all keys {_MAX_DOTS_OF_ALL:,}"
                raise ValueError(f"too many dots (at line {line}): {most}")
        else:
            dots = 0
            depth += (symbol in "[{") - (symbol in "]}")
            if depth > _MAX_DEPTH:
                raise ValueError("nested too deeply")
