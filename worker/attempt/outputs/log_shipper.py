import ctypes
import errno
import os
import stat
import time
from collections.abc import Callable
from contextlib import closing, suppress
from datetime import UTC, datetime
from pathlib import Path

from core.storage.joblogs.render import RedrawnRows
from core.storage.joblogs.writer import LogSink
from worker.attempt.outputs.metric_lines import parse_time

BLOCK_BYTES = 1024**2
RELEASE_BYTES = 16 * 1024**2
_END_BYTES = 1 << 14
_FALLOC_FL_KEEP_SIZE = 0x01
_FALLOC_FL_PUNCH_HOLE = 0x02
_UNSUPPORTED = {errno.EOPNOTSUPP, errno.ENOSYS, errno.EBADF, errno.EPERM}

_fallocate = ctypes.CDLL(None, use_errno=True).fallocate
_fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]


class SourceFile:
    """A file that the job writes and the worker follows; the job may do anything with it.

    Links are not followed, only a regular file is read, and a file that the job removes after it was opened is still
    read to its end.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None
        self._released = 0

    def read(self, offset: int, size: int) -> bytes:
        """Read at most `size` bytes from `offset`; nothing if there is no regular file."""
        descriptor = self.open()
        return os.pread(descriptor, size, offset) if descriptor is not None else b""

    def skip_hole(self, offset: int) -> int:
        """Return the first offset from `offset` on that has data on disk; the file's end if there is none."""
        descriptor = self.open()
        if descriptor is None:
            return offset
        try:
            return os.lseek(descriptor, offset, os.SEEK_DATA)
        except OSError as error:
            return max(offset, self.size) if error.errno == errno.ENXIO else offset

    @property
    def size(self) -> int:
        descriptor = self.open()
        return os.fstat(descriptor).st_size if descriptor is not None else 0

    @property
    def written_at(self) -> datetime:
        """Time of the last write to it; at most now."""
        descriptor = self.open()
        now = datetime.now(UTC)
        if descriptor is None:
            return now
        return min(parse_time(os.fstat(descriptor).st_mtime, now), now)

    def reopen_replaced(self) -> bool:
        """Open the file that has taken the place of this one, if there is one; return whether there is."""
        if self._descriptor is None:
            return False
        try:
            now = self._path.lstat()
        except OSError:
            return False
        if not stat.S_ISREG(now.st_mode) or os.path.samestat(now, os.fstat(self._descriptor)):
            return False
        self.close()
        return self.open() is not None

    def free(self, end: int, sync: Callable[[], None]) -> None:
        """Free the disk space before `end`, in large steps; offsets stay as they are.

        `sync`: makes the stored copy durable; called first.
        """
        if end - self._released < RELEASE_BYTES or self._descriptor is None:
            return
        sync()
        if _punch_hole(self._descriptor, self._released, end):
            self._released = end

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def open(self) -> int | None:
        if self._descriptor is None and os.path.lexists(self._path):
            flags = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            descriptor = None
            for mode in (os.O_RDWR, os.O_RDONLY):  # writable if allowed, to free what is shipped
                with suppress(OSError):
                    descriptor = os.open(self._path, flags | mode)
                    break
            if descriptor is None:
                return None
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                os.close(descriptor)
                return None
            self._descriptor = descriptor
        return self._descriptor


def read_log_end(control: Path) -> str:
    """Return the last output of a job, and what its wrapper says of signals, from its control folder."""
    text = b""
    for name in ("log", "signals"):
        with closing(SourceFile(control / name)) as file:
            text += file.read(max(0, file.size - _END_BYTES), _END_BYTES) + b"\n"
    return text.decode(errors="replace")


class LogShipper:
    """Ships raw bytes by offset. Output beyond the log's limit is dropped from its middle, never from its end.

    `tail_bytes`: bytes of the end that are kept when the limit is exceeded.
    """

    follow: Callable[[int, bytes], None] | None = None  # gets each block that is stored, with its offset

    def __init__(self, source: SourceFile, writer: LogSink, tail_bytes: int) -> None:
        self._source = source
        self._writer = writer
        self._tail_bytes = tail_bytes
        self._rows = RedrawnRows()

    def ship(self) -> int:
        """Ship new output up to the log's limit; return the number of bytes."""
        shipped = 0
        self._writer.flush()  # before more is read: what is read is accepted
        while (room := self._writer.remaining_bytes - self._tail_bytes) > 0:
            data = self._source.read(self._writer.position, min(BLOCK_BYTES, room))
            if not data:
                break
            self._append(data)
            self._writer.flush()
            shipped += len(data)
            self._source.free(self._writer.position, self._writer.sync)
        if room <= 0:
            self._source.free(self._source.size - self._tail_bytes, self._writer.sync)
        return shipped

    def finish(self) -> None:
        """Ship the rest; if the log is full, a gap marker and the end of the output."""
        self.ship()
        rest = self._source.size - self._writer.position
        if rest > self._tail_bytes:
            resume = self._source.size - self._tail_bytes
            self._writer.append_gap(resume - self._writer.position, resume, _now_ms())
            self._writer.flush()
        while data := self._source.read(self._writer.position, BLOCK_BYTES):
            self._append(data)
            self._writer.flush()
        self._writer.sync()

    def _append(self, data: bytes) -> None:
        offset = self._writer.position
        self._writer.append(self._rows.join(data), _now_ms(), source_bytes=len(data))
        if self.follow is not None:
            self.follow(offset, data)

    def repeat(self, offset: int, follow: Callable[[int, bytes], None]) -> None:
        """Call `follow` for what is stored already from this offset on, as far as the source still has it."""
        end = self._writer.position
        while data := self._source.read(at := self._source.skip_hole(offset), max(0, min(BLOCK_BYTES, end - at))):
            follow(at, data)
            offset = at + len(data)
        self.follow = follow


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _punch_hole(descriptor: int, start: int, end: int) -> bool:
    """Free the blocks of a file from `start` to `end`; it keeps its size and offsets (Linux's FALLOC_FL_PUNCH_HOLE).

    Returns whether the file system supports it; if not, the space stays taken until the file is deleted.
    """
    if _fallocate(descriptor, _FALLOC_FL_PUNCH_HOLE | _FALLOC_FL_KEEP_SIZE, start, end - start) == 0:
        return True
    number = ctypes.get_errno()
    if number in _UNSUPPORTED:
        return False
    raise OSError(number, os.strerror(number))
