import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from core.errors import StoreUnavailable
from core.storage.joblogs.index import BLOCK_BYTES, EMPTY, IndexView, Record
from core.storage.joblogs.render import incomplete_bytes, render
from core.storage.joblogs.search import FoundLines, LineRange, find_lines

DEFAULT_LINE_BYTES = 16 * 1024
DEFAULT_PAGE_BYTES = 8 << 20
_RAW_BLOCK = 1 << 20
_SKIP_BYTES = 1024
_MOST_PENDING = 3  # bytes of a character of which a byte is missing


class LogLine(NamedTuple):
    """One line as readers see it: 1-based number, Unix time in milliseconds of its end, text."""

    line: int
    time_ms: int
    message: str


class LogSection(NamedTuple):
    """Lines, the number of the log's last line, and the unfinished line after it, all as of the same moment."""

    lines: list[LogLine]
    total: int
    partial: str


class LogReader:
    """Reads the log of one job, also while it is written; every call opens and closes the files."""

    def __init__(self, directory: Path) -> None:
        self.raw_path = directory / "raw"
        self.index_path = directory / "index"

    @property
    def size(self) -> int:
        return self._last().raw_end

    @property
    def line_count(self) -> int:
        """Complete lines, that is newlines; an unfinished last line is not counted."""
        return self._last().lines_end

    @property
    def last_attempt(self) -> int:
        """The last attempt that has printed something; 0 if none has."""
        return self._last().attempt

    def tail(self, count: int, *, final: bool) -> int:
        """Return the value of `after` for which `lines` returns the last `count` lines."""
        last = self._last()
        return max(0, last.lines_end + (final and last.open_line) - count)

    def first_line(self, attempt: int) -> int | None:
        """Return the number of the first line that an attempt printed; None if it has printed nothing."""
        with self._open() as log:
            if not log or log.view.last.attempt < attempt:
                return None
            number = log.view.find_attempt(attempt)
            if log.view.records(number, 1)[0].attempt != attempt:
                return None
            before = log.view.records(number - 1, 1)[0] if number else EMPTY
            return before.lines_end + before.open_line + 1

    def lines(
        self,
        after: int,  # number of the last line already known; 0 for none
        limit: int,
        *,
        final: bool,
        max_line_bytes: int = DEFAULT_LINE_BYTES,
        max_page_bytes: int = DEFAULT_PAGE_BYTES,
    ) -> list[LogLine]:
        """Return lines after line `after`, in order and without gaps.

        Returns the lines; empty when there is none after `after` yet.

        `max_page_bytes`: no further line is added once the page holds this much text, so a page that is shorter than
        `limit` need not be the last.
        """
        with self._open() as log:
            bounds = {"max_line_bytes": max_line_bytes, "max_page_bytes": max_page_bytes}
            return list(log.page(max(0, after), limit, final=final, **bounds)) if log else []

    def section(self, after: int, limit: int, *, final: bool, max_page_bytes: int = DEFAULT_PAGE_BYTES) -> LogSection:
        """Return lines as `lines` does, with the length of the log and its unfinished line."""
        with self._open() as log:
            if not log:
                return LogSection([], 0, "")
            last = log.view.last
            bounds = {"max_line_bytes": DEFAULT_LINE_BYTES, "max_page_bytes": max_page_bytes}
            page = list(log.page(max(0, after), limit, final=final, **bounds))
            partial = "" if final else log.unfinished(DEFAULT_LINE_BYTES, growing=True)
            return LogSection(page, last.lines_end + (final and last.open_line), partial)

    def search(
        self, text: str | None, *, after: int, limit: int, final: bool, match_case: bool, seconds: float
    ) -> FoundLines:
        """Return the numbers of the lines after line `after` that contain a literal text.

        Args:
            text: The text, without a line end; None: what looks like an error.
            match_case: Whether upper and lower case differ; otherwise ASCII letters match in any case.
            seconds: Time after which the search ends, at the end of a line; it can be continued from there.
        """
        with self._open() as log:
            last = log.view.last if log else EMPTY
            unfinished = final and last.open_line
            if not log or after >= last.lines_end + unfinished:
                return FoundLines([], after, complete=True)
            end = last.raw_end if unfinished else last.line_start
            lines = LineRange(log.line_start(after + 1), end, after, last.lines_end + unfinished)
            return find_lines(log.read, lines, text, match_case=match_case, limit=limit, seconds=seconds)

    def partial(self, *, max_line_bytes: int = DEFAULT_LINE_BYTES) -> str:
        """Return the unfinished last line as it is now, e.g. a progress bar; '' if there is none."""
        with self._open() as log:
            return log.unfinished(max_line_bytes, growing=True) if log else ""

    def raw(self, offset: int, length: int) -> bytes:
        """Return up to `length` raw bytes from `offset` on; fewer at the end."""
        return b"".join(self.raw_blocks(offset, length))

    def raw_blocks(self, offset: int = 0, length: int | None = None) -> Iterator[bytes]:
        """Yield the raw bytes in blocks, up to the bytes committed when the first block was read."""
        with self._open() as log:
            if not log:
                return
            end = log.view.last.raw_end
            stop = end if length is None else min(end, offset + length)
            for start in range(max(0, offset), stop, _RAW_BLOCK):
                yield log.read(start, min(_RAW_BLOCK, stop - start))

    def _last(self) -> Record:
        with self._open() as log:
            return log.view.last if log else EMPTY

    @contextmanager
    def _open(self) -> Iterator["_Snapshot | None"]:
        try:
            raw = os.open(self.raw_path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            yield None
            return
        try:
            try:
                index = os.open(self.index_path, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                yield None
                return
            try:
                yield _Snapshot(raw, IndexView(index, raw))
            finally:
                os.close(index)
        finally:
            os.close(raw)


class _Snapshot:
    def __init__(self, raw: int, view: IndexView) -> None:
        self._raw = raw
        self.view = view

    def read(self, offset: int, length: int) -> bytes:
        return os.pread(self._raw, length, offset)

    def page(
        self, after: int, limit: int, *, final: bool, max_line_bytes: int, max_page_bytes: int
    ) -> Iterator[LogLine]:
        """Yield lines after line `after`; a final log's unfinished line counts as one."""
        last = self.view.last
        end = min(last.lines_end, after + limit)
        start = self.line_start(after + 1) if after < end else 0
        room = max_page_bytes
        for line, newline, at_ms in self._line_ends(after + 1, end, start):
            text = render(self.read, start, newline, max_line_bytes)
            yield LogLine(line, at_ms, text)
            start = newline + 1
            room -= len(text)
            if room <= 0:
                return
        if final and after <= end == last.lines_end and end - after < limit and last.open_line:
            yield LogLine(end + 1, last.at_ms, self.unfinished(max_line_bytes))

    def unfinished(self, max_line_bytes: int, *, growing: bool = False) -> str:
        """Return the last line. `growing`: more may follow, and a character of which only a part has come does."""
        last = self.view.last
        end = last.raw_end
        if growing:
            start = max(last.line_start, end - _MOST_PENDING)
            end -= incomplete_bytes(self.read(start, end - start))
        return render(self.read, last.line_start, end, max_line_bytes)

    def _line_ends(self, line: int, last: int, start: int) -> Iterator[tuple[int, int, int]]:
        """Yield number, raw offset of the newline, and time of the lines from `line` to `last`."""
        while line <= last:
            records = self._read_block(self.view.find_line(line))
            base = max(start, records[0].raw_start)
            data = self.read(base, records[-1].raw_end - base)
            at = data.find(b"\n")
            current = 0
            while at >= 0 and line <= last:
                while records[current].raw_end <= base + at:
                    current += 1
                yield line, base + at, records[current].at_ms
                line += 1
                start = base + at + 1
                at = data.find(b"\n", at + 1)

    def _read_block(self, first: int) -> list[Record]:
        records = self.view.records(first)
        stop = records[0].raw_start + BLOCK_BYTES
        return [record for record in records if record.raw_end <= stop]

    def line_start(self, line: int) -> int:
        """Return the raw offset of the first byte of a line, of which all lines before it are complete."""
        if line == 1:
            return 0
        number = self.view.find_line(line - 1)
        record = self.view.records(number, 1)[0]
        if record.lines_end == line - 1:
            return record.line_start
        before = self.view.records(number - 1, 1)[0].lines_end if number else 0
        data = self.read(record.raw_start, record.length)
        return record.raw_start + after_newline(data, line - 1 - before)


def after_newline(data: bytes, count: int) -> int:
    """Return the offset just past the `count`-th newline.

    Raises `StoreUnavailable`: there are fewer: a running job has just rewritten the file.
    """
    at = 0
    while (newlines := data.count(b"\n", at, at + _SKIP_BYTES)) < count:
        count -= newlines
        at += _SKIP_BYTES
        if at >= len(data):
            raise StoreUnavailable("The file changed while it was being read. Try again.")
    for _ in range(count):
        at = data.index(b"\n", at) + 1
    return at
