"""What jobs print: one log per job, raw bytes on disk with an index of lines and times beside them.

One writer at a time, in any process, which may be killed at any byte: a record of the index commits the raw
bytes before it, and whatever lies past the last record is cut off when the log is opened again. Readers only
see what is committed, so they may be anywhere and need no lock.
"""

import os
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, Self

from core.errors import GradientError
from core.joblog_index import (
    BATCH,
    BLOCK_BYTES,
    CONTINUED,
    EMPTY,
    FIXED,
    GROWING,
    RECORD_SIZE,
    IndexView,
    Record,
    last_commit,
    pack,
)
from core.joblog_text import render

DEFAULT_MAX_BYTES = 1 << 30
DEFAULT_LINE_BYTES = 16 * 1024
DEFAULT_PAGE_BYTES = 8 << 20
_RAW_BLOCK = 1 << 20
_JOB_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
_GROW_MS = 100


class LogLine(NamedTuple):
    """One line as readers see it: 1-based number, Unix time in milliseconds of its end, text."""

    line: int
    time_ms: int
    message: str


class JobLogs:
    """All job logs under one directory."""

    def __init__(self, root: Path, *, max_bytes: int = DEFAULT_MAX_BYTES) -> None:
        self._root = root
        self._max_bytes = max_bytes

    def directory(self, job_id: str) -> Path:
        """Where the log of this job lies; it exists once a writer was opened.

        Raises:
            GradientError: The id could not be a job's.
        """
        if not _JOB_ID.fullmatch(job_id):
            raise GradientError(f"{job_id!r} is no job id: letters, digits, '-' and '_' only", field="jobId")
        return self._root / job_id[:3] / job_id

    def open_writer(self, job_id: str, attempt: int) -> "LogWriter":
        """Opens the log for one attempt, from where the last writer committed.

        Only one writer may be open for a job; the caller's lease sees to that.

        Raises:
            GradientError: A later attempt has already written.
        """
        return LogWriter(self.directory(job_id), attempt, max_bytes=self._max_bytes)

    def reader(self, job_id: str) -> "LogReader":
        """A reader, which holds no open file between calls; a job that printed nothing yet reads as empty."""
        return LogReader(self.directory(job_id))

    def remove(self, job_id: str) -> None:
        """Deletes the log; deleting a missing one is success."""
        shutil.rmtree(self.directory(job_id), ignore_errors=True)


class LogWriter:
    """Appends the output of one attempt; every append is committed when the call returns.

    Committed means: a process killed afterwards loses nothing. To outlast a power cut, `sync` too.
    """

    def __init__(self, directory: Path, attempt: int, *, max_bytes: int = DEFAULT_MAX_BYTES) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        self._attempt = attempt
        self._max_bytes = max_bytes
        self._raw = os.open(directory / "raw", flags, 0o600)
        self._index = os.open(directory / "index", flags, 0o600)
        try:
            self._recover()
        except BaseException:
            self.close(sync=False)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def position(self) -> int:
        """The offset in this attempt's output of the next byte that is wanted."""
        return self._last.source_end if self._last.attempt == self._attempt else 0

    @property
    def size(self) -> int:
        """Bytes in the log, of all attempts."""
        return self._last.raw_end

    @property
    def room(self) -> int:
        """Bytes left before the log passes its limit. It is not enforced: head and tail are the shipper's choice."""
        return max(0, self._max_bytes - self._last.raw_end)

    def append(self, data: bytes, at_ms: int, *, source_bytes: int | None = None) -> None:
        """Appends output and moves `position` on.

        Args:
            data: What to store.
            at_ms: When it arrived, Unix milliseconds.
            source_bytes: How many bytes of the source `data` stands for, when not `len(data)`, as after secrets
                were replaced. Such an append is committed as a whole or not at all.

        Raises:
            OSError: It could not be written, e.g. the disk is full; nothing is committed then.
        """
        moved = len(data) if source_bytes is None else source_bytes
        if data or moved:
            self._commit(data, at_ms, self.position + moved, GROWING)

    def append_gap(self, skipped_bytes: int, resume_source_offset: int, at_ms: int) -> None:
        """Writes a line that says what was left out, and wants the source from `resume_source_offset` next.

        Raises:
            GradientError: The offset lies before what is stored already.
        """
        if resume_source_offset < self.position:
            raise GradientError(
                f"cannot resume at byte {resume_source_offset}: the log already holds up to {self.position}"
            )
        text = (
            f"[gradient] {skipped_bytes:,} bytes of output left out here: "
            f"the log passed its limit of {self._max_bytes:,} bytes"
        )
        self._commit(self._own_line(text), at_ms, resume_source_offset, FIXED)

    def note(self, text: str, at_ms: int | None = None) -> None:
        """Writes a line of the service's own; it counts as a line but not as output of the job."""
        now = time.time_ns() // 1_000_000 if at_ms is None else at_ms
        self._commit(self._own_line(" ".join(text.splitlines())), now, self.position, FIXED)

    def sync(self) -> None:
        """Makes what is committed outlast a power cut."""
        os.fdatasync(self._raw)
        os.fdatasync(self._index)

    def close(self, *, sync: bool = True) -> None:
        """Closes the log; closing twice is harmless."""
        if self._raw < 0:
            return
        try:
            if sync:
                self.sync()
        finally:
            os.close(self._raw)
            os.close(self._index)
            self._raw = self._index = -1

    def _recover(self) -> None:
        self._count, self._last = last_commit(self._index, self._raw)
        if self._attempt < self._last.attempt:
            raise GradientError(
                f"attempt {self._attempt} cannot write: attempt {self._last.attempt} has begun", field="attempt"
            )
        os.ftruncate(self._index, self._count * RECORD_SIZE)
        os.ftruncate(self._raw, self._last.raw_end)
        if self._last.attempt != self._attempt and self._last.line_start < self._last.raw_end:
            # The earlier attempt ended in mid-line; ours begins on a line of its own.
            self._commit(b"\n", self._last.at_ms, 0, FIXED)

    def _own_line(self, text: str) -> bytes:
        opened = self._last.line_start < self._last.raw_end
        return (b"\n" if opened else b"") + text.encode("utf-8", "replace") + b"\n"

    def _commit(self, data: bytes, at_ms: int, source_end: int, flags: int) -> None:
        _write_at(self._raw, data, self._last.raw_end)
        grows = flags == GROWING and self._may_grow(at_ms)
        slot = self._count - 1 if grows else self._count
        records = self._records(data, at_ms, source_end, flags, grows=grows)
        _write_at(self._index, b"".join(map(pack, records)), slot * RECORD_SIZE)
        self._count = slot + len(records)
        self._last = records[-1]

    def _may_grow(self, at_ms: int) -> bool:
        # A job that prints for weeks gets coarser times rather than an index larger than its log.
        window = _GROW_MS if self._count < 100_000 else _GROW_MS * 10
        last = self._last
        return (
            last.flags == GROWING
            and last.attempt == self._attempt
            and last.length < BLOCK_BYTES
            and 0 <= at_ms - last.at_ms < window
        )

    def _records(self, data: bytes, at_ms: int, source_end: int, flags: int, *, grows: bool) -> list[Record]:
        exact = source_end - self.position == len(data)
        previous, source = self._last, self.position
        length = previous.length if grows else 0
        begun = previous.at_ms if grows else at_ms
        records: list[Record] = []
        done = 0
        while done < len(data) or not records:
            stop = min(len(data), done + BLOCK_BYTES - length)
            newline = data.rfind(b"\n", done, stop)
            more = stop < len(data)
            record = Record(
                raw_end=previous.raw_end + stop - done,
                source_end=source + stop if exact else source if more else source_end,
                lines_end=previous.lines_end + (data.count(b"\n", done, stop) if newline >= 0 else 0),
                line_start=previous.raw_end + newline + 1 - done if newline >= 0 else previous.line_start,
                at_ms=begun,
                attempt=self._attempt,
                length=length + stop - done,
                flags=flags | CONTINUED if more and not exact else flags,
            )
            records.append(record)
            previous, length, begun, done = record, 0, at_ms, stop
        return records


def _write_at(descriptor: int, data: bytes, offset: int) -> None:
    written = os.pwrite(descriptor, data, offset)
    while written < len(data):
        written += os.pwrite(descriptor, memoryview(data)[written:], offset + written)


class LogReader:
    """Reads the log of one job, also while it is written; every call opens and closes the files itself."""

    def __init__(self, directory: Path) -> None:
        self.raw_path = directory / "raw"
        self.index_path = directory / "index"

    @property
    def size(self) -> int:
        """Committed raw bytes."""
        return self._last().raw_end

    @property
    def line_count(self) -> int:
        """Complete lines, that is newlines; an unfinished last line is not counted."""
        return self._last().lines_end

    def tail(self, count: int, *, final: bool) -> int:
        """The value of `after` that makes `lines` return the last `count` lines."""
        last = self._last()
        unfinished = final and last.line_start < last.raw_end
        return max(0, last.lines_end + unfinished - count)

    def lines(
        self,
        after: int,
        limit: int,
        *,
        final: bool,
        max_line_bytes: int = DEFAULT_LINE_BYTES,
        max_page_bytes: int = DEFAULT_PAGE_BYTES,
    ) -> list[LogLine]:
        """Lines after line `after`, in order and without gaps.

        Args:
            after: Number of the last line already known; 0 for none.
            limit: Most lines to return.
            final: The job ended, so an unfinished last line counts as one.
            max_line_bytes: A longer line is cut, and says so at its end.
            max_page_bytes: No further line is added once the page holds this much text, so a page that is
                shorter than `limit` need not be the last.

        Returns:
            The lines; empty when there is none after `after` yet.
        """
        with self._open() as log:
            return list(log.page(max(0, after), limit, final, max_line_bytes, max_page_bytes)) if log else []

    def partial(self, *, max_line_bytes: int = DEFAULT_LINE_BYTES) -> str:
        """The present state of the unfinished last line, e.g. a progress bar; '' if there is none."""
        with self._open() as log:
            if not log:
                return ""
            last = log.view.last
            return render(log.read, last.line_start, last.raw_end, max_line_bytes)

    def raw(self, offset: int, length: int) -> bytes:
        """Up to `length` raw bytes from `offset` on; shorter at the end."""
        return b"".join(self.raw_blocks(offset, length))

    def raw_blocks(self, offset: int = 0, length: int | None = None) -> Iterator[bytes]:
        """The raw bytes in blocks, up to what was committed when the first block was asked for."""
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
    """A log as it was at one moment."""

    def __init__(self, raw: int, view: IndexView) -> None:
        self._raw = raw
        self.view = view

    def read(self, offset: int, length: int) -> bytes:
        return os.pread(self._raw, length, offset)

    def page(
        self, after: int, limit: int, final: bool, max_line_bytes: int, max_page_bytes: int
    ) -> Iterator[LogLine]:
        ...
