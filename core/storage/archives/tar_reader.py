"""Tar archives (POSIX, GNU and the old format), read as a stream, plain or through gzip."""

import io
import re
import zlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, BinaryIO

from core.storage.archives.limits import (
    DAMAGED,
    READ_BYTES,
    ArchiveLimits,
    Budget,
    invalid,
    read_blocks,
    read_exactly,
    shortened,
)
from core.storage.archives.tree import ArchiveEntry, EntryKind

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

_BLOCK = 512
# Small, because the rest of the buffer is copied at the end of each gzip member: many empty members must stay cheap.
_READ_PACKED = 16 * 1024
_MAX_MEMBERS = 100_000
_GZIP = zlib.MAX_WBITS | 16

_FILE_TYPES = b"0\x007"
_KINDS = {b"1": EntryKind.HARD_LINK, b"2": EntryKind.SYMLINK, b"5": EntryKind.FOLDER}
_DEVICES = {b"3": "a device", b"4": "a device", b"6": "a named pipe", b"S": "a sparse file"}
_PAX, _PAX_GLOBAL = b"xX", b"g"
_GNU_NAME, _GNU_TARGET = b"L", b"K"

_MAX_EXTENDED = 1024**2  # extended headers hold attributes that are not kept; a real one is a few kilobytes
_MAX_HEADERS_PER_FILE = 4
_PAX_RECORD = re.compile(rb"(\d{1,7}) ([^=]+)=")
_PAX_SECONDS = re.compile(r"(\d{1,12})(?:\.(\d*))?")

_PAX_KEYS = ("path", "linkpath", "size", "mtime")
_SPARSE = (b"GNU.sparse.", b"SCHILY.realsize")
_MAX_SIZE_DIGITS = 20

_CHECKSUM = slice(148, 156)
_BASE_256 = 0x80
_NEGATIVE = 0xC0

_NO_TAR = "it is a compressed file without a tar archive in it; send a zip or a tar.gz of the folder"


class GzipStream(io.RawIOBase):
    """The unpacked bytes of a gzip file; verifies its checksums and limits the compression ratio.

    The ratio is checked on what was read so far, so that a decompression bomb is stopped early.
    """

    def __init__(self, file: BinaryIO, budget: Budget) -> None:
        super().__init__()
        self._file = file
        self._budget = budget
        self._inflater = zlib.decompressobj(_GZIP)
        self._pending = b""
        self._members = 1
        self._unpacked = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "WriteableBuffer") -> int:
        """Fill `buffer`, at least in part; return 0 at the end of the last gzip member."""
        view = memoryview(buffer)
        while not self._inflater.eof or self._next_member():
            packed = self._pending or self._file.read(_READ_PACKED)
            try:
                chunk = self._inflater.decompress(packed, len(view))
            except zlib.error:
                raise invalid("the gzip file is damaged; pack the folder and send it again") from None
            self._pending = self._inflater.unconsumed_tail or self._inflater.unused_data
            if chunk:
                view[: len(chunk)] = chunk
                self._unpacked += len(chunk)
                self._budget.check_ratio(unpacked=self._unpacked, packed=self._file.tell() - len(self._pending))
                return len(chunk)
            if not packed and not self._inflater.eof:
                raise invalid("the gzip file was cut short; send the archive again")
        return 0

    def _next_member(self) -> bool:
        """Start the next gzip member, if there is one; zeros after the last member are padding."""
        while not (rest := self._pending.lstrip(b"\0")):
            if not (rest := self._file.read(_READ_PACKED)):
                return False
            self._pending = rest
        self._pending = rest
        self._members += 1
        if self._members > _MAX_MEMBERS:
            raise invalid("the gzip file is made of too many pieces; pack the folder again")
        self._inflater = zlib.decompressobj(_GZIP)
        return True


def read_tar(stream: BinaryIO, limits: ArchiveLimits, budget: Budget) -> Iterator[ArchiveEntry]:
    extended: dict[str, str] = {}
    headers = 0
    while block := _next_header(stream, first=not headers):
        headers += 1
        if headers > _MAX_HEADERS_PER_FILE * limits.max_files:
            raise invalid(f"it holds more than {limits.max_files} files and folders; leave some out (.gradientignore)")
        kind = block[156:157]
        if kind in _PAX + _PAX_GLOBAL + _GNU_NAME + _GNU_TARGET:
            extended |= _extended(stream, block, kind, budget)
            continue
        yield _entry(stream, block, extended, budget)
        extended = {}
    _check_end(stream)


def is_tar_header(block: bytes) -> bool:
    """Check whether these first bytes of a file can be a tar archive: a header, or the end mark of an empty archive."""
    return len(block) >= _BLOCK and (_has_checksum(block[:_BLOCK]) or not any(block[: 2 * _BLOCK]))


def _has_checksum(block: bytes) -> bool:
    try:
        claimed = _number(block[_CHECKSUM])
    except ValueError:
        return False
    return claimed == sum(block) - sum(block[_CHECKSUM]) + 8 * ord(" ")


def _next_header(stream: BinaryIO, *, first: bool) -> bytes | None:
    """Read the next header block; None at the end mark."""
    block = stream.read(_BLOCK)
    if len(block) == _BLOCK and not any(block):
        return None
    if len(block) < _BLOCK or not _has_checksum(block):
        raise invalid(_NO_TAR if first else DAMAGED)
    return block


def _check_end(stream: BinaryIO) -> None:
    """Read to the end of the stream, so that gzip's checksum is verified and no data hides after the end mark."""
    while rest := stream.read(READ_BYTES):
        if rest.strip(b"\0"):
            raise invalid("the tar archive goes on after its end mark; pack the folder into one archive")


def _number(field: bytes) -> int:
    """Parse a number in a header: octal digits, or base 256 if the first bit is set (GNU)."""
    if field[0] & _BASE_256:
        if field[0] & (_NEGATIVE - _BASE_256):
            raise ValueError("negative")
        return int.from_bytes(bytes([field[0] & ~_BASE_256]) + field[1:], "big")
    digits = field.split(b"\0")[0].strip()
    if digits and not digits.isdigit():
        raise ValueError("not a number")
    return int(digits or b"0", 8)


def _text(field: bytes) -> str:
    raw = field.split(b"\0")[0]
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise invalid(f"entry {raw[:30]!r} has a name that is not valid UTF-8; rename the file") from None


def _size(block: bytes) -> int:
    try:
        return _number(block[124:136])
    except ValueError:
        raise invalid(DAMAGED) from None


def _skip_padding(stream: BinaryIO, size: int) -> None:
    read_exactly(stream, -size % _BLOCK)


def _extended(stream: BinaryIO, block: bytes, kind: bytes, budget: Budget) -> dict[str, str]:
    """Read an extended header; returns the fields that it sets for the next entry."""
    size = _size(block)
    if size > _MAX_EXTENDED:
        raise invalid(f"the tar archive has an extended header of {size} bytes; pack without extended attributes")
    data = read_exactly(stream, size)
    _skip_padding(stream, size)
    if kind == _GNU_NAME:
        return {"path": _text(data)}
    if kind == _GNU_TARGET:
        return {"linkpath": _text(data)}
    records = dict(_pax_records(data, budget))
    if any(key.startswith(_SPARSE) for key in records):
        raise invalid("the tar archive has a sparse file in it; pack the folder without --sparse")
    known = {key: _text(records[key.encode()]) for key in _PAX_KEYS if records.get(key.encode())}
    if kind != _PAX_GLOBAL:
        return known
    if known.keys() - {"mtime"}:
        raise invalid("the tar archive sets one name or size for all its entries; pack the folder with an ordinary tar")
    return {}


def _pax_records(data: bytes, budget: Budget) -> Iterator[tuple[bytes, bytes]]:
    """Yield records of the form `LENGTH KEY=VALUE` and a newline, where LENGTH counts the whole record."""
    at = 0
    while at < len(data):
        head = _PAX_RECORD.match(data, at)
        end = at + int(head[1]) if head else 0
        if not head or not head.end() < end <= len(data) or data[end - 1 : end] != b"\n":
            raise invalid(DAMAGED)
        budget.add_attribute()
        yield head[2], data[head.end() : end - 1]
        at = end


def _entry(stream: BinaryIO, block: bytes, extended: dict[str, str], budget: Budget) -> ArchiveEntry:
    name = extended.get("path") or _header_name(block)
    what = f"entry {shortened(name)}"
    size = _size(block)
    if digits := extended.get("size"):
        if not digits.isdecimal() or len(digits) > _MAX_SIZE_DIGITS:
            raise invalid(DAMAGED)
        size = int(digits)
    kind = _kind(block[156:157], name, what)
    mode, mtime_ns = _mode(block), _mtime_ns(block, extended)
    if kind is EntryKind.FILE:
        budget.add(name, size)
        return ArchiveEntry(name, kind, mode, mtime_ns, chunks=_contents(stream, size))
    if size:
        raise invalid(f"{what} is a {kind} with contents of its own; pack the folder again")
    target = extended.get("linkpath") or _text(block[157:257])
    return ArchiveEntry(name, kind, mode, mtime_ns, target=target)


def _header_name(block: bytes) -> str:
    name = _text(block[:100])
    # GNU's variant of the magic has no NUL here, and other fields where POSIX has the prefix.
    prefix = _text(block[345:500]) if block[257:263] == b"ustar\0" else ""
    return f"{prefix}/{name}" if prefix else name


def _kind(code: bytes, name: str, what: str) -> EntryKind:
    if code in _DEVICES:
        raise invalid(f"{what} is {_DEVICES[code]}; leave it out and pack the folder again")
    if code in _FILE_TYPES:
        return EntryKind.FOLDER if name.endswith("/") else EntryKind.FILE  # the oldest tars had no type for folders
    if code not in _KINDS:
        raise invalid(f"{what} is of an unknown type ({code!r}); pack the folder with an ordinary tar")
    return _KINDS[code]


def _mode(block: bytes) -> int | None:
    try:
        return _number(block[100:108])
    except ValueError:
        return None


def _mtime_ns(block: bytes, extended: dict[str, str]) -> int | None:
    if exact := _PAX_SECONDS.fullmatch(extended.get("mtime", "")):
        return int(exact[1]) * 10**9 + int(f"{exact[2] or '':0<9.9}")
    try:
        return _number(block[136:148]) * 10**9
    except ValueError:
        return None


def _contents(stream: BinaryIO, size: int) -> Iterator[bytes]:
    yield from read_blocks(stream, size)
    _skip_padding(stream, size)
