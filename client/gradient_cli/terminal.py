"""Terminal output: width, colours and escaping of untrusted text."""

from __future__ import annotations

import os
import re
import sys
from typing import TextIO

from gradient_cli.errors import FAILED, ClientError, UsageError

_CODES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33"}
_ASCII_END = 128

# Sequences that a job could use to control a terminal, such as its title, size or clipboard.
_ESCAPES = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # CSI
    r"|\x1b[\]PX^_].*?(?:\x07|\x1b\\|\x9c|$)"  # OSC, DCS, SOS, PM, APC with their text
    r"|\x1b[ -/]*[0-~]?"  # the two-character ones, and a lone ESC
    r"|\x9b[0-?]*[ -/]*[@-~]?"  # CSI as one C1 byte
    r"|[\x9d\x90\x98\x9e\x9f].*?(?:\x07|\x1b\\|\x9c|$)"  # the C1 forms of OSC and its kin
    r"|[\x00-\x08\x0b-\x1f\x7f-\x9f]",
    re.DOTALL,
)
_COLOUR = re.compile(r"\x1b\[[0-9;:]*m")


def is_tty(stream: TextIO) -> bool:
    try:
        return stream.isatty()
    except ValueError:  # closed
        return False


def width(stream: TextIO | None = None) -> int:
    """Return the columns of the terminal: from COLUMNS, else from the terminal itself, else 80."""
    columns = os.environ.get("COLUMNS", "")
    if columns.isdecimal() and int(columns) > 0:
        return int(columns)
    try:
        return os.get_terminal_size((stream or sys.stdout).fileno()).columns or 80
    except (OSError, ValueError):
        return 80


def supports_colour(stream: TextIO) -> bool:
    """Return whether to write colours: the stream is a terminal that has them, and NO_COLOR is not set."""
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb" and is_tty(stream)


def style(text: str, kind: str, stream: TextIO) -> str:
    """Return the text in a colour or weight if the stream takes colours, else unchanged."""
    return f"\x1b[{_CODES[kind]}m{text}\x1b[0m" if supports_colour(stream) else text


def sanitize_line(text: str, *, colours: bool) -> str:
    """Strip control sequences from one line of a job's output, which may have several rows.

    `colours`: keep colour and weight (SGR) sequences, closing them at the end of the line.
    """
    if text.isprintable():
        return text
    if not colours:
        return _ESCAPES.sub("", text)
    cleaned = _ESCAPES.sub(lambda match: match[0] if _COLOUR.fullmatch(match[0]) else "", text)
    return f"{cleaned}\x1b[0m" if "\x1b[" in cleaned else cleaned


def sanitize(value: object) -> str:
    """Make a server's text safe inside a sentence or a table: one line, no control characters."""
    text = str(value)
    return text if text.isprintable() else sanitize_line(re.sub(r"\s+", " ", text), colours=False)


def display_width(text: str) -> int:
    if text.isascii():
        return len(text)
    import unicodedata

    return sum(_char_width(char, unicodedata.east_asian_width(char), unicodedata.combining(char)) for char in text)


def _char_width(char: str, east_asian: str, combining: int) -> int:
    if ord(char) < _ASCII_END:
        return 1
    if combining or char in "\u200b\u200c\u200d\ufe0e\ufe0f":
        return 0
    return 2 if east_asian in "WF" else 1


def truncate(text: str, columns: int) -> str:
    """Return the text, cut with an ellipsis if it takes more than `columns`."""
    if display_width(text) <= columns:
        return text
    kept, used = [], 0
    for char in text:
        used += display_width(char)
        if used > columns - 1:
            break
        kept.append(char)
    return "".join(kept) + "…"


def print_message(text: str) -> None:
    """Print a message to stderr: it is not part of the command's result."""
    print(text, file=sys.stderr, flush=True)


def confirm(question: str) -> bool:
    """Ask a question on the terminal; without an answer, it is no."""
    sys.stderr.write(f"{question} [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in {"y", "yes"}


def confirm_deletion(what: str) -> None:
    if not is_tty(sys.stdin):
        raise UsageError(f"{sanitize(what)} would be deleted; confirm with --yes (no terminal to ask)")
    if not confirm(f"Delete {sanitize(what)}?"):
        raise ClientError("nothing was deleted", code=FAILED)
