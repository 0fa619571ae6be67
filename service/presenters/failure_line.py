"""The line of a failed job's log that most likely names the cause."""

import re

from core.storage.joblogs.reader import LogLine, LogReader

_LAST_LINES = 100
_LAST_BYTES, _MOST_BYTES = 64 * 1024, 1024**2
_LINE_BYTES = 1024
_COLOURS = re.compile(r"\x1b\[[0-9;:]*m")
_ERROR = re.compile(r"(?:[\w.]*(?:Error|Exception|Interrupt)|error|fatal|panic)\b", re.IGNORECASE)


def failure_line(reader: LogReader) -> LogLine | None:
    """Return the last line that begins with an error's name, such as that of a traceback, else the last with text.

    Reads only the end of the log, which must be of an ended job. Colours are removed from the text, and a long line is
    truncated.
    """
    newlines = 0
    for length in (_LAST_BYTES, _MOST_BYTES):
        if newlines < _LAST_LINES:
            newlines = reader.raw(reader.size - length, length).count(b"\n")
    count = min(_LAST_LINES, max(1, newlines))
    found = reader.lines(reader.tail(count, final=True), count, final=True, max_line_bytes=_LINE_BYTES)
    plain = [line._replace(message=_COLOURS.sub("", line.message).strip().rpartition("\n")[2]) for line in found]
    spoken = [line for line in plain if line.message]
    errors = [line for line in spoken if _ERROR.match(line.message)]
    best = errors or spoken
    return best[-1] if best else None
