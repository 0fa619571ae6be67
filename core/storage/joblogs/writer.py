import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol, Self

from core.errors import GradientError, LeaseLost, StoreUnavailable
from core.storage.joblogs.index import BLOCK_BYTES, CONTINUED, FIXED, GROWING, RECORD_SIZE, Record, last_commit, pack

DEFAULT_MAX_BYTES = 1 << 30
_GROW_MS = 100
_MANY_RECORDS = 100_000
_TOKEN_BYTES = 16
LOCK_SECONDS = 10.0
_LOCK_PAUSE_SECONDS = 0.02


class LogSink(Protocol):
    """Target of the output of one attempt; see `LogWriter`."""

    @property
    def position(self) -> int:
        """The offset in this attempt's output of the next byte to append."""

    @property
    def remaining_bytes(self) -> int:
        """Bytes left before the log passes its limit."""

    def flush(self) -> None:
        """Store what was accepted and is not stored yet."""

    def append(self, data: bytes, at_ms: int, *, source_bytes: int | None = None) -> None:
        """Append output and advance `position`."""

    def append_gap(self, skipped_bytes: int, resume_source_offset: int, at_ms: int) -> None:
        """Write a line that describes what was left out, and continue at `resume_source_offset` of the source."""

    def sync(self) -> None:
        """Let everything appended survive a power cut."""

    def close(self, *, sync: bool = True) -> None:
        """Close the log; closing twice is harmless."""


class LogWriter:
    """Appends the output of one attempt; every append is committed when the call returns.

    Committed data survives the end of this process; to survive a power cut, call `sync` too.

    Only the writer that was opened last can write: the next append of any other raises `LeaseLost`. Each change is made
    under a lock: a process that is frozen in the middle of one would go on with it when it wakes, so meanwhile the log
    cannot be opened.

    Raises:
        LeaseLost: A later attempt has already written.
        StoreUnavailable: Another process has been in the middle of a change for 10 s.
    """

    def __init__(self, directory: Path, attempt: int, *, max_bytes: int = DEFAULT_MAX_BYTES) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        self._attempt = attempt
        self._max_bytes = max_bytes
        self._raw = os.open(directory / "raw", flags, 0o600)
        self._index = os.open(directory / "index", flags, 0o600)
        self._token_file = os.open(directory / "writer", flags, 0o600)
        self._token = os.urandom(_TOKEN_BYTES)
        try:
            with self._lock():
                _write_at(self._token_file, self._token, 0)
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
        """The offset in this attempt's output of the next byte to append."""
        return self._last.source_end if self._last.attempt == self._attempt else 0

    @property
    def size(self) -> int:
        return self._last.raw_end

    @property
    def remaining_bytes(self) -> int:
        """Bytes left before the log passes its limit. Not enforced here: the caller chooses what to leave out."""
        return max(0, self._max_bytes - self._last.raw_end)

    def flush(self) -> None:
        """Do nothing: each append is committed when it returns."""

    def append(self, data: bytes, at_ms: int, *, source_bytes: int | None = None) -> None:
        """Append output and advance `position`.

        Raises `OSError`: it could not be written, e.g. the disk is full; nothing is committed then.

        Args:
            at_ms: When it arrived, Unix milliseconds.
            source_bytes: Bytes of the source that `data` represents, if not `len(data)`, e.g. after secrets were
                replaced. Such an append is committed as a whole or not at all.
        """
        moved = len(data) if source_bytes is None else source_bytes
        if data or moved:
            self._commit(data, at_ms, self.position + moved, GROWING)

    def append_gap(self, skipped_bytes: int, resume_source_offset: int, at_ms: int) -> None:
        """Write a line that describes what was left out, and continue at `resume_source_offset` of the source."""
        if resume_source_offset < self.position:
            raise GradientError(
                f"cannot resume at byte {resume_source_offset}: the log already holds up to {self.position}"
            )
        start = "\n" if self._last.open_line else ""
        text = (
            f"{start}[gradient] {skipped_bytes:,} bytes of output left out here: "
            f"the log passed its limit of {self._max_bytes:,} bytes\n"
        )
        self._commit(text.encode(), at_ms, resume_source_offset, FIXED)

    def sync(self) -> None:
        """Flush committed data to disk, so that it survives a power cut."""
        os.fdatasync(self._raw)
        os.fdatasync(self._index)

    def close(self, *, sync: bool = True) -> None:
        """Close the log; closing twice is harmless."""
        if self._raw < 0:
            return
        try:
            if sync:
                self.sync()
        finally:
            os.close(self._raw)
            os.close(self._index)
            os.close(self._token_file)
            self._raw = self._index = self._token_file = -1

    def _recover(self) -> None:
        self._count, self._last = last_commit(self._index, self._raw)
        if self._attempt < self._last.attempt:
            raise LeaseLost(f"attempt {self._attempt} cannot write: attempt {self._last.attempt} has begun")
        os.ftruncate(self._index, self._count * RECORD_SIZE)
        os.ftruncate(self._raw, self._last.raw_end)
        if self._last.attempt != self._attempt and self._last.open_line:
            # The previous attempt ended in mid-line; this one starts on a new line.
            self._write(b"\n", self._last.at_ms, 0, FIXED)

    @contextmanager
    def _lock(self) -> Iterator[None]:
        give_up = time.monotonic() + LOCK_SECONDS
        while True:
            try:
                fcntl.flock(self._token_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as error:
                if time.monotonic() > give_up:
                    raise StoreUnavailable(
                        "The job's log cannot be written: another worker was stopped in the middle of a write to "
                        "it. Writing is retried until that worker continues or ends."
                    ) from error
            time.sleep(_LOCK_PAUSE_SECONDS)
        try:
            yield
        finally:
            fcntl.flock(self._token_file, fcntl.LOCK_UN)

    def _commit(self, data: bytes, at_ms: int, source_end: int, flags: int) -> None:
        with self._lock():
            # A worker that was frozen while another took its job over still has its old state.
            if os.pread(self._token_file, _TOKEN_BYTES, 0) != self._token:
                raise LeaseLost("another writer has opened this log")
            self._write(data, at_ms, source_end, flags)

    def _write(self, data: bytes, at_ms: int, source_end: int, flags: int) -> None:
        _write_at(self._raw, data, self._last.raw_end)
        grows = flags == GROWING and self._extends_last(at_ms)
        slot = self._count - 1 if grows else self._count
        records = self._records(data, at_ms, source_end, flags, grows=grows)
        _write_at(self._index, b"".join(map(pack, records)), slot * RECORD_SIZE)
        self._count = slot + len(records)
        self._last = records[-1]

    def _extends_last(self, at_ms: int) -> bool:
        # Coarser times for a job that prints for weeks, so that the index does not grow larger than the log.
        window = _GROW_MS if self._count < _MANY_RECORDS else 10 * _GROW_MS
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
        started = previous.at_ms if grows else at_ms
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
                at_ms=started,
                attempt=self._attempt,
                length=length + stop - done,
                flags=flags | CONTINUED if more and not exact else flags,
            )
            records.append(record)
            previous, length, started, done = record, 0, at_ms, stop
        return records


def _write_at(descriptor: int, data: bytes, offset: int) -> None:
    written = os.pwrite(descriptor, data, offset)
    while written < len(data):
        written += os.pwrite(descriptor, memoryview(data)[written:], offset + written)
