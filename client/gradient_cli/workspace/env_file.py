"""Files of environment variables, in the format that Docker Compose and others call dotenv."""

from __future__ import annotations

import re

from gradient_cli.errors import UsageError
from gradient_cli.text import decode

_ASSIGNMENT = re.compile(
    r"""(?:export\s+)?(?P<name>[A-Za-z_][A-Za-z0-9_]*)\s*=\s*
    (?:'(?P<literal>[^']*)' | "(?P<escaped>(?:[^"\\]|\\.)*)" | (?P<bare>[^\s'"#](?:.*?\S)??)?)
    (?:\s+\#.*|(?<==)\#.*)?""",
    re.VERBOSE,
)
_ESCAPE = re.compile(r"\\(.)")
_ESCAPED = {"n": "\n", "r": "\r", "t": "\t"}


def read(path: str) -> dict[str, str]:
    """Read the variables of a file.

    A line is `NAME=VALUE`, perhaps after `export`. A value may be in single quotes, as it is, or in double quotes, with
    backslash escapes; a `#` after white space begins a comment. Nothing is expanded.
    """
    try:
        with open(path, "rb") as file:
            lines = decode(file.read()).splitlines()
    except OSError as error:
        raise UsageError(f"env-file: cannot read {path}: {error.strerror}", hint="Check its path.") from None
    except UnicodeDecodeError:
        raise UsageError(f"env-file: {path} is not UTF-8 text", hint="Save it as UTF-8.") from None
    found: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        match = _ASSIGNMENT.fullmatch(text)
        if not match:
            raise UsageError(
                f"env-file: {path}, line {number}: not an assignment",
                hint="Write NAME=VALUE; put a value with quotes or # into quotes.",
            )
        found[match["name"]] = _value(match)
    return found


def _value(match: re.Match[str]) -> str:
    if match["escaped"] is not None:
        return _ESCAPE.sub(lambda one: _ESCAPED.get(one[1], one[1]), match["escaped"])
    return match["literal"] or match["bare"] or ""
