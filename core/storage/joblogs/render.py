"""Renders lines of raw output for display: overwritten text folded, control characters removed, long lines cut."""

import codecs
import re
from collections.abc import Callable

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
NEXT_ROW = b"\x1bE"
_MOST_ROWS = 200
_MOVE = re.compile(rb"\n|\x1b\[(\d{0,3})([ABEF])")
_INCOMPLETE = re.compile(rb"\x1b(?:\[\d{0,3})?\Z")
_STEP = re.compile(rb"(\r|\x1bE|\x1b\[\d{0,3}[ABEFJK])")
_DRAWS = re.compile(rb"\x1b(?:E|\[\d{0,3}[AF])")


def _clean(text: str) -> str:
    if not _SPECIAL.search(text):
        return text
    return _SEQUENCE.sub(lambda match: match["colour"] or "", text)


def _visible(head: bytes, length: int, limit: int) -> str:
    if length <= limit:
        return _clean(head.decode("utf-8", "replace"))
    text = _utf8("replace").decode(head[:limit], final=False)  # final=False leaves out a character that the cut splits
    return f"{_clean(text)} … [{length:,} bytes in total; download the log to see them]"


def incomplete_bytes(tail: bytes) -> int:
    """Return how many bytes at the end are the start of a character; `tail` need not begin with one."""
    decoder = _utf8("replace")
    decoder.decode(tail, final=False)
    return len(decoder.getstate()[0])


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


class RedrawnRows:
    """Follows the cursor through one attempt's output."""

    def __init__(self) -> None:
        self._rows_below = 0
        self._incomplete = b""  # the start of a sequence at the end of what was seen

    def join(self, data: bytes) -> bytes:
        if not self._rows_below and not self._incomplete and b"\x1b" not in data:
            return data
        seen = self._incomplete + data
        joined = _MOVE.sub(self._move, seen)[len(self._incomplete) :]
        incomplete = _INCOMPLETE.search(seen)
        self._incomplete = incomplete[0] if incomplete else b""
        return joined

    def _move(self, match: re.Match[bytes]) -> bytes:
        if match[0] == b"\n":
            if not self._rows_below:
                return b"\n"
            self._rows_below -= 1
            return NEXT_ROW
        rows = max(1, int(match[1] or 1))
        below = self._rows_below + (rows if match[2] in b"AF" else -rows)
        self._rows_below = min(max(0, below), _MOST_ROWS)
        return match[0]


def last_rows(data: bytes) -> list[bytes]:
    """Return the rows that a line shows in the end, without blank ones; none if it is no line of several rows."""
    if not _DRAWS.search(data):
        return []
    rows: dict[int, bytes] = {}
    at, over = 0, True
    for part in _STEP.split(data):
        kind = part[-1:]
        if not _STEP.fullmatch(part):
            if part:
                rows[at] = part if over else rows.get(at, b"") + part
                over = False
        elif kind == b"\r":
            over = True
        elif kind == b"K":
            if over or part[2:-1] == b"2":
                rows.pop(at, None)
        elif kind == b"J":
            rows = {row: text for row, text in rows.items() if row < at or (row == at and not over)}
        else:
            count = max(1, int(part[2:-1] or 1)) if part != NEXT_ROW else 1
            at += -count if kind in b"AF" else count
            over = True
    return [rows[row] for row in sorted(rows) if rows[row].strip()]
