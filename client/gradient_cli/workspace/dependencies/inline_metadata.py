"""The metadata in the comments of a script (PEP 723)."""

from __future__ import annotations

from typing import Any

from gradient_cli.errors import UsageError
from gradient_cli.text import parse_toml

_START, _END = "# /// script", "# ///"
_MAX_DETAIL = 600


def invalid(where: str, problem: str) -> UsageError:
    """Return the error for requirements that cannot be used."""
    text = f"{where}: {problem}"
    if len(text) > _MAX_DETAIL:
        text = f"{text[: _MAX_DETAIL - 1]}…"
    # Names of files may have any character; PostgreSQL stores no NUL.
    return UsageError("".join(character if character.isprintable() else "\ufffd" for character in text))


def has_metadata(text: str) -> bool:
    return bool(_blocks_of(text.replace("\r\n", "\n").split("\n")))


def _blocks_of(lines: list[str]) -> list[list[str]]:
    """Return the lines of each block, as PEP 723 has it: up to the last line that may end it."""
    blocks: list[list[str]] = []
    start = end = None  # numbers of lines
    for number, line in enumerate([*lines, ""]):
        if start is None:
            start = number if line == _START else None
        elif line != "#" and not line.startswith("# "):
            if end is not None:
                blocks.append(lines[start + 1 : end])
            start = end = None
        elif line == _END and number > start + 1:
            end = number
    return blocks


def read_metadata(text: str, source: str) -> dict[str, Any] | None:
    lines = text.replace("\r\n", "\n").split("\n")
    blocks = _blocks_of(lines)
    if not blocks:
        if _START in lines:
            # PEP 723 ignores it; the command would run without its packages.
            rule = "All its lines must begin with `# `, and the last must be `# ///`."
            raise invalid(source, f"its metadata (# /// script) is empty or does not end. {rule}")
        return None
    if len(blocks) > 1:
        raise invalid(source, "it has more than one block of metadata (# /// script). Keep only one.")
    content = "\n".join(line.removeprefix("#").removeprefix(" ") for line in blocks[0])
    try:
        return parse_toml(content)
    except ValueError as error:
        raise invalid(source, f"its metadata (# /// script) is not valid TOML: {error}.") from error
