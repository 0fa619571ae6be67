"""The format of packs: a tar.gz of regular files without any extended header, each named by the sha256 of its content.

So little of both formats is allowed that packs are read wherever they are needed, unlike the archives of users.
"""

import hashlib
import io
import re
import tarfile
import zlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

from core.storage.workspaces.limits import invalid, shortened

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

READ_BYTES = 256 * 1024
_PACKED_BYTES = 64 * 1024
_MOST_PADDING = 1024**2  # bytes that programs leave after the end of a tar
_GZIP = zlib.MAX_WBITS | 16
_NAME = re.compile("[0-9a-f]{64}")
_DAMAGED = "the pack of contents is damaged or was cut short; send it again"


class Content(NamedTuple):
    sha256: str
    size: int
    chunks: Iterator[bytes]  # verified at their end; what is left of them is skipped


def read_pack(file: BinaryIO) -> Iterator[Content]:
    """Yield the contents in a pack, which is read to its end. Raises `WorkspaceInvalid`: it is damaged."""
    inflated = _Inflated(file)
    stream = io.BufferedReader(inflated, READ_BYTES)
    while any(block := _read_exactly(stream, tarfile.BLOCKSIZE)):
        try:
            header = tarfile.TarInfo.frombuf(block, "ascii", "strict")
        except (tarfile.HeaderError, UnicodeDecodeError):
            raise invalid(_DAMAGED) from None
        if header.type != tarfile.REGTYPE or not _NAME.fullmatch(header.name) or header.size < 0:
            raise invalid(
                f"entry {shortened(header.name)} of the pack is no file named by its sha256; send each content in that "
                "way, in a tar.gz without extended headers"
            )
        chunks = _verified(stream, header.name, header.size)
        yield Content(header.name, header.size, chunks)
        for _ in chunks:
            pass
        _read_exactly(stream, -header.size % tarfile.BLOCKSIZE)
    if any(stream.read(_MOST_PADDING)) or stream.read(1) or not inflated.at_end():
        raise invalid(_DAMAGED)


def _read_exactly(stream: BinaryIO, size: int) -> bytes:
    data = stream.read(size)
    if len(data) != size:
        raise invalid(_DAMAGED)
    return data


def _verified(stream: BinaryIO, sha256: str, size: int) -> Iterator[bytes]:
    digest, left = hashlib.sha256(), size
    while left:
        chunk = _read_exactly(stream, min(left, READ_BYTES))
        left -= len(chunk)
        digest.update(chunk)
        yield chunk
    if digest.hexdigest() != sha256:
        raise invalid(f"entry {shortened(sha256)} of the pack has another sha256 than its name; send it again")


class _Inflated(io.RawIOBase):
    """The unpacked bytes of one gzip stream. `gzip` would read on in others, of which a file may have any number."""

    def __init__(self, file: BinaryIO) -> None:
        super().__init__()
        self._file = file
        self._inflater = zlib.decompressobj(_GZIP)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "WriteableBuffer") -> int:
        view = memoryview(buffer)
        while not self._inflater.eof:
            packed = self._inflater.unconsumed_tail or self._file.read(_PACKED_BYTES)
            try:
                chunk = self._inflater.decompress(packed, len(view))
            except zlib.error:
                raise invalid(_DAMAGED) from None
            if chunk:
                view[: len(chunk)] = chunk
                return len(chunk)
            if not packed and not self._inflater.eof:
                raise invalid(_DAMAGED)
        return 0

    def at_end(self) -> bool:
        return self._inflater.eof and not self._inflater.unused_data and not self._file.read(1)
