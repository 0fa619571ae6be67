r"""Rows of a log that a program goes back to with the cursor, as nested progress bars and live tables do.

Such rows are one line of the log, as the states of a bar that begins again with `\r` are: a newline that only moves the
cursor down to a row that is there already is stored as the terminals' own sequence for that, `ESC E`.
"""

import re

NEXT_ROW = b"\x1bE"
_MOST_ROWS = 200
_MOVE = re.compile(rb"\n|\x1b\[(\d{0,3})([ABEF])")
_INCOMPLETE = re.compile(rb"\x1b(?:\[\d{0,3})?\Z")
_STEP = re.compile(rb"(\r|\x1bE|\x1b\[\d{0,3}[ABEFJK])")
_DRAWS = re.compile(rb"\x1b(?:E|\[\d{0,3}[AF])")


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

    def _move(self, found: re.Match[bytes]) -> bytes:
        if found[0] == b"\n":
            if not self._rows_below:
                return b"\n"
            self._rows_below -= 1
            return NEXT_ROW
        rows = max(1, int(found[1] or 1))
        below = self._rows_below + (rows if found[2] in b"AF" else -rows)
        self._rows_below = min(max(0, below), _MOST_ROWS)
        return found[0]


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
