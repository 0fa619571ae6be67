"""Renders lines of raw output for display: overwritten text folded, control characters removed, long lines cut."""

import codecs
import re
from collections.abc import Callable

from core.storage.joblogs.redrawn_rows import last_rows

FOLD_BYTES = 64 * 1024  # a progress bar's current state is short; this bounds the work for one line
FOLD_STATES = 64

_SPECIAL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f]")
_SEQUENCE = re.compile(
    r"(?P<colour>\x1b\[[0-9;:]*m)"
    r"|(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]?"  # every other control sequence: cursor, erase, modes
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)"  # titles, links, device strings
    r"|\x1b[ -/]*[0-~]?"
    r"|[\x00-\x08\x0a-\x1f\x7f-\x9f]"
)
_utf8 = codecs.getincrementaldecoder("utf-8")


def _clean(text: str) -> str:
    if not _SPECIAL.search(text):
        return text
    return _SEQUENCE.sub(lambda match: match["colour"] or "", text)


def _visible(head: bytes, length: int, limit: int) -> str:
    if length <= limit:
        return _clean(head.decode("utf-8", "replace"))
    text = _utf8("replace").decode(head[:limit], final=False)  # final=False leaves out a character that the cut splits
    return f"{_clean(text)} … [{length:,} bytes in all; the download has them]"


def render(read: Callable[[int, int], bytes], start: int, end: int, limit: int) -> str:
    r"""Render one line as text.

    A `\r` starts the line over: the last state that is not empty is returned, of the last `FOLD_STATES` states
    within the last `FOLD_BYTES` bytes. Rows that the cursor went back to are shown as they are last, with newlines
    between them. Colours (SGR) and tabs are kept, other control characters and sequences
    are removed, and invalid UTF-8 becomes U+FFFD.

    Args:
        read: Returns the raw bytes at (offset, length).
        start: Raw offset of the line's first byte.
        end: Raw offset just past its last byte, the newline not included.
        limit: Longest state in bytes that is shown whole; a longer one is truncated, with a note.
    """
    tail_start = max(start, end - FOLD_BYTES)
    tail = read(tail_start, end - tail_start)
    if rows := last_rows(tail):
        return "\n".join(_visible(row, len(row), limit) for row in rows)
    first, *later = tail.rstrip(b"\r").rsplit(b"\r", FOLD_STATES)
    for state in reversed(later):
        if text := _visible(state, len(state), limit):
            return text
    if len(later) == FOLD_STATES:
        return ""
    before = tail_start - start
    return _visible(read(start, min(limit, before)) + first if before else first, before + len(first), limit)
