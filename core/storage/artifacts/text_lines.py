"""Lines of a text artifact of any length, by number and by search, as those of a log."""

import threading
from array import array
from bisect import bisect_left
from collections.abc import Iterator
from typing import NamedTuple

from cachetools import LRUCache

from core.errors import SpecInvalid
from core.formatting import format_bytes
from core.storage.artifacts.store import OpenArtifact
from core.storage.joblogs.reader import DEFAULT_LINE_BYTES, DEFAULT_PAGE_BYTES, after_newline
from core.storage.joblogs.render import render
from core.storage.joblogs.search import FoundLines, LineRange, find_lines

MAX_TEXT_BYTES = 1 << 30  # largest text whose lines are counted
BLOCK = 256 * 1024
_PROBE_BYTES = 8192
_MAX_INDEXES = 128


class LineIndex(NamedTuple):
    """Newlines of a text up to the end of each of its blocks; `open_line`: bytes follow the last one."""

    newlines: "array[int]"
    open_line: bool

    @property
    def total(self) -> int:
        return (self.newlines[-1] if self.newlines else 0) + self.open_line


class LineIndexCache:
    """The line indexes of the texts that were read last: each costs one pass over its text."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._indexes: LRUCache[tuple[str, int, str, int, int], LineIndex] = LRUCache(_MAX_INDEXES)

    def open(self, opened: OpenArtifact, job_id: str, attempt: int, path: str) -> "TextLines":
        """Return the lines of an artifact that was opened, which the caller closes."""
        if opened.size > MAX_TEXT_BYTES:
            raise SpecInvalid(
                f"{path!r} has {format_bytes(opened.size)}: lines are counted up to {format_bytes(MAX_TEXT_BYTES)}. "
                "Download it, or a range of it.",
                field="path",
            )
        key = (job_id, attempt, path, opened.size, opened.mtime_ms)
        with self._lock:
            index = self._indexes.get(key)
        if index is None:
            opened.file.seek(0)
            if b"\0" in opened.file.read(_PROBE_BYTES):
                raise SpecInvalid(f"{path!r} is not text. Download it to open it.", field="path")
            opened.file.seek(0)
            newlines, count, block = array("q"), 0, b""
            while more := opened.file.read(BLOCK):
                block = more
                count += block.count(b"\n")
                newlines.append(count)
            index = LineIndex(newlines, open_line=bool(block) and not block.endswith(b"\n"))
            with self._lock:
                self._indexes[key] = index
        return TextLines(opened, index)


class TextLines:
    def __init__(self, opened: OpenArtifact, index: LineIndex) -> None:
        self._opened = opened
        self._index = index
        self.total = index.total

    def read(self, after: int, limit: int, max_line_bytes: int = DEFAULT_LINE_BYTES) -> Iterator[tuple[int, str]]:
        """Yield number and text of lines after line `after`, as a log's are rendered: fewer if they are long."""
        last = min(self.total, after + limit)
        start, room = self._line_start(after + 1) if after < last else 0, DEFAULT_PAGE_BYTES
        base, data = start, b""
        for line in range(after + 1, last + 1):
            end = data.find(b"\n", start - base)
            if end < 0:
                base, data = start, self._bytes(start, BLOCK)
                end = data.find(b"\n")
            newline = base + end if end >= 0 else self._line_end(line)
            text = render(self._bytes, start, newline, max_line_bytes)
            yield line, text
            start, room = newline + 1, room - len(text)
            if room <= 0:
                return

    def search(self, text: str | None, *, after: int, limit: int, match_case: bool, seconds: float) -> FoundLines:
        """Return the numbers of the lines after line `after` that contain a text, as `LogReader.search`."""
        if after >= self.total:
            return FoundLines([], after, complete=True)
        lines = LineRange(self._line_start(after + 1), self._opened.size, after, self.total)
        return find_lines(self._bytes, lines, text, match_case=match_case, limit=limit, seconds=seconds)

    def _line_start(self, line: int) -> int:
        if line == 1:
            return 0
        block = bisect_left(self._index.newlines, line - 1)
        before = self._index.newlines[block - 1] if block else 0
        return block * BLOCK + after_newline(self._bytes(block * BLOCK, BLOCK), line - 1 - before)

    def _line_end(self, line: int) -> int:
        return self._opened.size if line == self.total and self._index.open_line else self._line_start(line + 1) - 1

    def _bytes(self, offset: int, length: int) -> bytes:
        self._opened.file.seek(offset)
        return self._opened.file.read(length)
