"""The metadata in the comments of a script (PEP 723)."""

from __future__ import annotations

import re

from gradient_cli import TYPE_CHECKING
from gradient_cli.errors import UsageError
from gradient_cli.text import parse_toml

if TYPE_CHECKING:
    from typing import Any

_START = re.compile(r"(?m)^# /// script$")
# As PEP 723 has it.
_BLOCK = re.compile(r"(?m)^# /// script$\s(?P<content>(^#(| .*)$\s)+)^# ///$")


_MAX_DETAIL = 600


def invalid(where: str, problem: str) -> UsageError:
    """Return the error for requirements that cannot be used."""
    text = f"{where}: {problem}"
    if len(text) > _MAX_DETAIL:
        text = f"{text[: _MAX_DETAIL - 1]}…"
    # Names of files may have any character; PostgreSQL stores no NUL.
    return UsageError("".join(one if one.isprintable() else "\ufffd" for one in text))


def has_metadata(text: str) -> bool:
    return _BLOCK.search(text.replace("\r\n", "\n")) is not None


def read_metadata(text: str, source: str) -> dict[str, Any] | None:
    text = text.replace("\r\n", "\n")
    blocks = list(_BLOCK.finditer(text))
    if not blocks:
        if _START.search(text):
            # PEP 723 ignores it; the command would run without its packages.
            rule = "All its lines begin with `# `, and the last is `# ///`."
            raise invalid(source, f"its metadata (# /// script) is empty or does not end. {rule}")
        return None
    if len(blocks) > 1:
        raise invalid(source, "more than one block of metadata (# /// script). Leave one.")
    lines = blocks[0]["content"].splitlines()
    content = "\n".join(line.removeprefix("#").removeprefix(" ") for line in lines)
    try:
        return parse_toml(content)
    except (ValueError, RecursionError) as error:  # the latter for nested values
        raise invalid(source, f"its metadata (# /// script) is not valid TOML: {error}.") from error
