"""The line of a failed job's log that names the cause, if one looks like an error."""

import re

from core.storage.joblogs.reader import LogLine, LogReader
from core.storage.joblogs.store import JobLogs
from service.schemas.jobs import JobView

_LAST_LINES = 100
_LAST_BYTES, _MOST_BYTES = 64 * 1024, 1024**2
_LINE_BYTES = 1024
_COLOURS = re.compile(r"\x1b\[[0-9;:]*m")
_ERROR = re.compile(
    # an exception, or what a program says of itself, after a time stamp or its name
    r"(?:\S*\[\S*\]:? |\S+: )*(?:[\w.]*(?:Error|Exception|Interrupt|Exit)\b(?!s)"
    r"|(?i:fatal|panic|error)\b(?! rate|s?\s*[:=]?\s*[\d.e+-]+%?\Z))"
    r"|.*\b(?:ERROR|FATAL|CRITICAL|ERR!)(?:\W|\Z)"
    r"|.*(?:: error: |not found|[Nn]o such file|[Pp]ermission denied|[Ss]egmentation fault|core dumped|panicked at"
    r"|terminate called|[Cc]an(?:'t|not) open|[Aa]ssertion .*failed)|(?:Killed|Aborted|Terminated)\Z"
)
_FRAME = re.compile(r"  File \"|    |  \[Previous line repeated|  [|+]")
"""Starts of the lines before the last one of a traceback, whose exception may have any name."""


def failure_line(logs: JobLogs, job: JobView) -> LogLine | None:
    """Return the last line that looks like an error of a command that ended with an exit code of its own, else None.

    Any other end, such as that by a limit, has its reason, of which the log knows nothing. Reads only the end of the
    log. Colours are removed from the text, and a long line is truncated.
    """
    return _last_error(logs.reader(job.id)) if job.reason == "exit_nonzero" and job.state == "Failed" else None


def _last_error(reader: LogReader) -> LogLine | None:
    newlines = 0
    for length in (_LAST_BYTES, _MOST_BYTES):
        if newlines < _LAST_LINES:
            newlines = reader.raw(reader.size - length, length).count(b"\n")
    count = min(_LAST_LINES, max(1, newlines))
    lines = reader.lines(reader.tail(count, final=True), count, final=True, max_line_bytes=_LINE_BYTES)
    plain = [line._replace(message=_COLOURS.sub("", line.message).rstrip().rpartition("\n")[2]) for line in lines]
    best, frame = None, False
    for line in plain:
        raised = frame and line.message and not line.message[0].isspace()
        if raised or _ERROR.match(line.message.strip()):
            best = line._replace(message=line.message.strip())
        frame = bool(_FRAME.match(line.message)) and (frame or "File " in line.message)
    return best
