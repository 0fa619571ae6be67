"""Zip archives, read by their central directory and checked against their local headers.

Entries are read in the order of their data in the file, each within its own byte range: two entries cannot share
data, and data that the directory does not mention is never read.
"""

import os
import stat
import struct
import zlib
from collections.abc import Iterator
from datetime import UTC, datetime
from operator import attrgetter
from typing import BinaryIO, NamedTuple

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

_END = struct.Struct("<4s4H2LH")
_END_64 = struct.Struct("<4sQ2H2L4Q")
_LOCATOR_64 = struct.Struct("<4sLQL")
_CENTRAL = struct.Struct("<4s6H3L5H2L")
_LOCAL = struct.Struct("<4s5H3L2H")
_EXTRA = struct.Struct("<2H")

_END_MAGIC, _END_64_MAGIC, _LOCATOR_64_MAGIC = b"PK\x05\x06", b"PK\x06\x06", b"PK\x06\x07"
_CENTRAL_MAGIC, _LOCAL_MAGIC = b"PK\x01\x02", b"PK\x03\x04"

_MAX_COMMENT = 0xFFFF
_IN_ZIP64 = 0xFFFFFFFF

_FLAG_ENCRYPTED, _FLAG_SIZES_FOLLOW, _FLAG_UTF8 = 0x2041, 0x0008, 0x0800
_STORED, _DEFLATED = 0, 8
_EXTRA_ZIP64, _EXTRA_TIMESTAMP, _EXTRA_UNICODE_PATH = 0x0001, 0x5455, 0x7075
_TIMESTAMP_HAS_MTIME = 1
_UNICODE_PATH_HEAD = struct.Struct("<BL")


class _Member(NamedTuple):
    raw_name: bytes
    name: str
    flags: int
    method: int
    crc: int
    packed: int
    size: int
    offset: int
    mode: int
    mtime_ns: int | None


class _Directory(NamedTuple):
    entries: int
    offset: int
    size: int


def read_zip(file: BinaryIO, limits: ArchiveLimits, budget: Budget) -> Iterator[ArchiveEntry]:
    """Yield the entries of a zip archive, in the order of their data in the file.

    The sizes that the archive declares are checked against the limits before anything is unpacked; unpacking stops
    where an entry is larger than declared.
    """
    directory = _find_directory(file)
    if directory.entries > limits.max_files:
        raise invalid(
            f"it holds {directory.entries} entries, more than the {limits.max_files} allowed here; leave some out "
            "(.gradientignore), or keep data sets in storage as a few large files"
        )
    members = sorted(_members(file, directory), key=attrgetter("offset"))
    for member in members:
        budget.add(member.name, member.size)
    budget.check_ratio(unpacked=budget.bytes, packed=file.seek(0, os.SEEK_END))
    offsets = [member.offset for member in members] + [directory.offset]
    for member, end in zip(members, offsets[1:], strict=True):
        yield _entry(file, member, end, limits)


def _unpack(layout: struct.Struct, file: BinaryIO, magic: bytes) -> tuple[int, ...]:
    fields = layout.unpack(read_exactly(file, layout.size))
    if fields[0] != magic:
        raise invalid(DAMAGED)
    return fields[1:]


def _find_directory(file: BinaryIO) -> _Directory:
    """Read the end-of-central-directory record, and its ZIP64 form if there is one."""
    size = file.seek(0, os.SEEK_END)
    tail_at = max(0, size - _END.size - _MAX_COMMENT)
    file.seek(tail_at)
    tail = file.read()
    at = tail.rfind(_END_MAGIC)
    # The comment may contain the magic bytes too: only a record that ends the file counts.
    while at >= 0 and not _ends_file(tail, at):
        at = tail.rfind(_END_MAGIC, 0, at)
    if at < 0:
        raise invalid(DAMAGED)
    _, disk, first_disk, here, entries, length, offset, _ = _END.unpack_from(tail, at)
    end = tail_at + at
    if disk != first_disk or here != entries:
        raise invalid("the zip archive is split into several files; pack the folder into one")
    locator_at = max(0, end - _LOCATOR_64.size)
    file.seek(locator_at)
    if file.read(len(_LOCATOR_64_MAGIC)) == _LOCATOR_64_MAGIC:
        end, entries, length, offset = _find_directory_64(file, locator_at)
    if offset + length != end:
        raise invalid(DAMAGED)
    return _Directory(entries, offset, length)


def _ends_file(tail: bytes, at: int) -> bool:
    return len(tail) - at >= _END.size and at + _END.size + _END.unpack_from(tail, at)[-1] == len(tail)


def _find_directory_64(file: BinaryIO, locator_at: int) -> tuple[int, int, int, int]:
    file.seek(locator_at)
    _, at, _ = _unpack(_LOCATOR_64, file, _LOCATOR_64_MAGIC)
    if at > locator_at:
        raise invalid(DAMAGED)
    file.seek(at)
    *_, entries, length, offset = _unpack(_END_64, file, _END_64_MAGIC)
    return at, entries, length, offset


def _members(file: BinaryIO, directory: _Directory) -> Iterator[_Member]:
    file.seek(directory.offset)
    left = directory.size
    for _ in range(directory.entries):
        fields = _unpack(_CENTRAL, file, _CENTRAL_MAGIC)
        lengths = fields[9:12]
        left -= _CENTRAL.size + sum(lengths)
        if left < 0:
            raise invalid(DAMAGED)
        raw_name = read_exactly(file, lengths[0])
        extra = read_exactly(file, lengths[1])
        read_exactly(file, lengths[2])
        yield _member(fields, raw_name, _extra_fields(extra))
    if left:
        raise invalid(DAMAGED)


def _extra_fields(extra: bytes) -> dict[int, bytes]:
    fields: dict[int, bytes] = {}
    at = 0
    while at + _EXTRA.size <= len(extra):
        kind, size = _EXTRA.unpack_from(extra, at)
        at += _EXTRA.size
        fields.setdefault(kind, extra[at : at + size])
        at += size
    return fields


def _member(fields: tuple[int, ...], raw_name: bytes, extra: dict[int, bytes]) -> _Member:
    _, _, flags, method, dos_time, dos_date, crc, packed, size, *_, attributes, offset = fields
    name = _name(raw_name, flags, extra)
    if _IN_ZIP64 in (size, packed, offset):
        size, packed, offset = _zip64_sizes(extra.get(_EXTRA_ZIP64, b""), (size, packed, offset))
    mtime_ns = _mtime_ns(dos_date, dos_time, extra.get(_EXTRA_TIMESTAMP, b""))
    return _Member(raw_name, name, flags, method, crc, packed, size, offset, attributes >> 16, mtime_ns)


def _zip64_sizes(field: bytes, narrow: tuple[int, int, int]) -> tuple[int, int, int]:
    """Take from the ZIP64 field the sizes that did not fit in 32 bits; it holds only those, in this order."""
    missing = narrow.count(_IN_ZIP64)
    if len(field) < 8 * missing:
        raise invalid(DAMAGED)
    wide = iter(struct.unpack_from(f"<{missing}Q", field))
    size, packed, offset = (next(wide) if value == _IN_ZIP64 else value for value in narrow)
    return size, packed, offset


def _name(raw_name: bytes, flags: int, extra: dict[int, bytes]) -> str:
    unicode_path = extra.get(_EXTRA_UNICODE_PATH, b"")
    if len(unicode_path) > _UNICODE_PATH_HEAD.size:
        version, crc = _UNICODE_PATH_HEAD.unpack_from(unicode_path)
        if version == 1 and crc == zlib.crc32(raw_name):
            raw_name, flags = unicode_path[_UNICODE_PATH_HEAD.size :], flags | _FLAG_UTF8
    try:
        return raw_name.decode()
    except UnicodeDecodeError:
        if flags & _FLAG_UTF8:
            raise invalid(f"entry {raw_name[:30]!r} has a name that is not valid UTF-8; rename the file") from None
    # Several programs write UTF-8 without setting its flag, so the format's old code page is tried second.
    return raw_name.decode("cp437")


def _mtime_ns(dos_date: int, dos_time: int, timestamp: bytes) -> int | None:
    """Return the modification time; the DOS field has no time zone and is read as UTC."""
    if len(timestamp) >= 1 + 4 and timestamp[0] & _TIMESTAMP_HAS_MTIME:
        return int(struct.unpack_from("<l", timestamp, 1)[0]) * 10**9
    try:
        moment = datetime(
            (dos_date >> 9) + 1980,
            dos_date >> 5 & 0xF,
            dos_date & 0x1F,
            dos_time >> 11,
            dos_time >> 5 & 0x3F,
            (dos_time & 0x1F) * 2,
            tzinfo=UTC,
        )
    except ValueError:
        return None
    return int(moment.timestamp()) * 10**9


def _entry(file: BinaryIO, member: _Member, end: int, limits: ArchiveLimits) -> ArchiveEntry:
    what = f"entry {shortened(member.name)}"
    if member.flags & _FLAG_ENCRYPTED:
        raise invalid(f"{what} is encrypted; pack the folder without a password")
    if member.method not in (_STORED, _DEFLATED):
        raise invalid(f"{what} uses zip compression method {member.method}; pack with the usual one (deflate)")
    kind = _kind(member, what)
    if member.offset < end:
        _check_local_header(file, member, what)
    if member.offset >= end or file.tell() + member.packed > end:
        raise invalid(f"{what} shares its bytes with another entry; pack the folder again with an ordinary zip program")
    mode = stat.S_IMODE(member.mode) if member.mode else None
    if kind is EntryKind.FOLDER:
        return ArchiveEntry(member.name, kind, mode, member.mtime_ns)
    chunks = _contents(file, member, what)
    if kind is EntryKind.FILE:
        return ArchiveEntry(member.name, kind, mode, member.mtime_ns, chunks=chunks)
    if member.size > limits.max_path_bytes:
        raise invalid(f"{what} is a symbolic link to a path that is too long; leave it out")
    try:
        target = b"".join(chunks).decode()
    except UnicodeDecodeError:
        raise invalid(f"{what} is a symbolic link to a path that is not valid UTF-8; leave it out") from None
    return ArchiveEntry(member.name, kind, mode, member.mtime_ns, target=target)


def _kind(member: _Member, what: str) -> EntryKind:
    file_type = stat.S_IFMT(member.mode)
    if file_type == stat.S_IFLNK:
        return EntryKind.SYMLINK
    if file_type not in (0, stat.S_IFREG, stat.S_IFDIR):
        raise invalid(f"{what} is a device, pipe or socket; leave it out")
    if file_type != stat.S_IFDIR and not member.name.endswith("/"):
        return EntryKind.FILE
    if member.size:
        raise invalid(f"{what} is a folder with contents of its own; pack the folder again")
    return EntryKind.FOLDER


def _check_local_header(file: BinaryIO, member: _Member, what: str) -> None:
    """Check that the local header matches the directory, and leave the file positioned at the entry's data.

    Otherwise programs that trust one header would see another archive than programs that trust the other.
    """
    file.seek(member.offset)
    _, flags, method, _, _, crc, packed, size, name_size, extra_size = _unpack(_LOCAL, file, _LOCAL_MAGIC)
    raw_name = read_exactly(file, name_size)
    read_exactly(file, extra_size)
    same = raw_name == member.raw_name and method == member.method and not flags & _FLAG_ENCRYPTED
    if same and not flags & _FLAG_SIZES_FOLLOW:
        same = crc == member.crc and packed in (member.packed, _IN_ZIP64) and size in (member.size, _IN_ZIP64)
    if not same:
        raise invalid(f"{what} has two descriptions that disagree; pack the folder again with an ordinary zip program")


def _contents(file: BinaryIO, member: _Member, what: str) -> Iterator[bytes]:
    crc = size = 0
    for chunk in _inflate(file, member, what) if member.method == _DEFLATED else read_blocks(file, member.packed):
        crc = zlib.crc32(chunk, crc)
        size += len(chunk)
        if size > member.size:
            raise invalid(f"{what} is larger than the {member.size} bytes the archive claims; pack the folder again")
        yield chunk
    if size != member.size or crc != member.crc:
        raise invalid(f"{what} does not match its checksum; the archive is damaged, pack and send it again")


def _inflate(file: BinaryIO, member: _Member, what: str) -> Iterator[bytes]:
    inflater = zlib.decompressobj(-zlib.MAX_WBITS)
    try:
        for packed in read_blocks(file, member.packed):
            rest = packed
            while rest:
                yield inflater.decompress(rest, READ_BYTES)
                rest = inflater.unconsumed_tail
        while not inflater.eof and (chunk := inflater.decompress(b"", READ_BYTES)):
            yield chunk
    except zlib.error:
        raise invalid(f"{what} cannot be unpacked; the archive is damaged, pack and send it again") from None
    if not inflater.eof or inflater.unused_data:
        raise invalid(f"{what} cannot be unpacked; the archive is damaged, pack and send it again")
