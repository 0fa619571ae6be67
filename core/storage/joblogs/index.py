"""The index of a job's log: fixed-size records, each a commit point for the raw bytes before it."""

import os
import struct
import zlib
from collections.abc import Callable
from typing import NamedTuple

RECORD_SIZE = 64
BLOCK_BYTES = 64 * 1024  # most bytes per record, so that finding a line within one takes microseconds
BATCH = 64

GROWING = 0  # flag of ordinary output: the last record may grow in place while its time window is open
FIXED = 1  # flag of lines that the service wrote (gap markers): never merged with other output
CONTINUED = 2  # flag of a record whose append continues in the next one; it is therefore not a commit point

# 64 bytes, a divisor of the sector size: no record spans two sectors, so a power cut cannot tear one.
_LAYOUT = struct.Struct("<QQQQQIII8x")
_CHECKSUM = struct.Struct("<I")
_REREADS = 3


class Record(NamedTuple):
    """One range of raw bytes, with the counts at its end.

    Offsets and lengths are bytes; `at_ms` is Unix time in milliseconds of the first byte's arrival.
    `source_end` counts bytes of the attempt's own output; `line_start` is where the line that is open at the
    end begins.
    """

    raw_end: int
    source_end: int
    lines_end: int
    line_start: int
    at_ms: int
    attempt: int
    length: int
    flags: int

    @property
    def raw_start(self) -> int:
        return self.raw_end - self.length

    @property
    def open_line(self) -> bool:
        """True if there are bytes after the last newline."""
        return self.line_start < self.raw_end


EMPTY = Record(0, 0, 0, 0, 0, 0, 0, FIXED)


def pack(record: Record) -> bytes:
    """Encode a record as 64 bytes with a checksum at the end."""
    body = _LAYOUT.pack(*record)
    return body + _CHECKSUM.pack(zlib.crc32(body))


def unpack(data: bytes, at: int = 0) -> Record | None:
    """Decode the record at byte `at` of `data`; None if it is torn."""
    body = data[at : at + _LAYOUT.size]
    stored = data[at + _LAYOUT.size : at + RECORD_SIZE]
    if len(stored) < _CHECKSUM.size or _CHECKSUM.unpack(stored)[0] != zlib.crc32(body):
        return None
    return Record(*_LAYOUT.unpack(body))


def last_commit(index: int, raw: int) -> tuple[int, Record]:
    """Find the newest commit point of which every raw byte exists.

    Returns the number of records up to and with the commit point, and the commit point; (0, EMPTY) if none.
    """
    for _ in range(_REREADS):
        count = os.fstat(index).st_size // RECORD_SIZE
        # A record that grows in place can be read half written; a second read finds it whole.
        if not count or unpack(os.pread(index, RECORD_SIZE, (count - 1) * RECORD_SIZE)):
            break
    while count:
        first = max(0, count - BATCH)
        data = os.pread(index, (count - first) * RECORD_SIZE, first * RECORD_SIZE)
        raw_size = os.fstat(raw).st_size
        while count > first:
            record = unpack(data, (count - 1 - first) * RECORD_SIZE)
            if record and not record.flags & CONTINUED and record.raw_end <= raw_size:
                return count, record
            count -= 1
    return 0, EMPTY


class IndexView:
    """A snapshot of the index: records committed when it was made, without later ones."""

    def __init__(self, index: int, raw: int) -> None:
        self._index = index
        self.count, self.last = last_commit(index, raw)

    def records(self, first: int, limit: int = BATCH) -> list[Record]:
        """Return up to `limit` records from number `first` on (0-based)."""
        stop = min(self.count, first + limit)
        data = os.pread(self._index, (stop - first) * RECORD_SIZE, first * RECORD_SIZE)
        records = [Record(*_LAYOUT.unpack_from(data, at)) for at in range(0, len(data) - RECORD_SIZE + 1, RECORD_SIZE)]
        if stop == self.count and records:
            records[-1] = self.last  # the one on disk may have grown since
        return records

    def find_line(self, line: int) -> int:
        """Return the number of the record with the newline that ends line `line` (1-based), which must exist."""
        return self._find_first(lambda record: record.lines_end >= line)

    def find_attempt(self, attempt: int) -> int:
        """Return the number of the first record of an attempt or of a later one, which must exist."""
        return self._find_first(lambda record: record.attempt >= attempt)

    def _find_first(self, reached: Callable[[Record], bool]) -> int:
        low, high = 0, self.count - 1
        while low < high:
            middle = (low + high) // 2
            if reached(self.records(middle, 1)[0]):
                high = middle
            else:
                low = middle + 1
        return low
