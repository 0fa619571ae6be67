"""Headers of binary files: arrays of NumPy, tensors of safetensors, members of zip archives."""

import json
import re
import struct
import zipfile
import zlib
from dataclasses import dataclass
from itertools import islice
from typing import IO, Any, BinaryIO, cast

_ENTRIES = 1000
_ARRAYS = 100
_MAX_HEADER = 1024**2
_MAX_DIRECTORY = 2 * 1024**2
_MAX_SIZE = 1 << 63
_NPY_HEADER = 4096
_DETAIL = 1000
_MAGIC = b"\x93NUMPY"
_NPY_FIELDS = re.compile(
    r"\{\s*'descr'\s*:\s*(?:'(?P<name>[^']*)'|(?P<fields>\[.*\]))\s*,\s*'fortran_order'\s*:\s*(?P<fortran>True|False)\s*,"
    r"\s*'shape'\s*:\s*\((?P<shape>[\dL,\s]*)\)\s*,?\s*\}\s*"
)
"""A header as NumPy and others write it. Every header matches or fails in linear time."""
_UNPACKED = {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}
"""Methods that are unpacked: those NumPy uses. Of the others, `zipfile` unpacks a whole block at once."""


@dataclass(frozen=True, slots=True)
class Entry:
    """An array or a member: its name, its type and shape, and its size in bytes if that is known."""

    name: str
    detail: str
    size: int | None


@dataclass(frozen=True, slots=True)
class Contents:
    """The contents of a file: their total number, and the first of them."""

    total: int
    entries: list[Entry]
    noun: str


def read_npy(file: BinaryIO, size: int) -> Contents | None:
    detail = _npy_detail(file)
    return None if detail is None else Contents(1, [Entry("array", detail, size)], "array")


def read_npz(file: BinaryIO, _size: int) -> Contents | None:
    """Read the headers of the first arrays in an archive; None: it is not one."""
    archive = _open_zip(file)
    if archive is None:
        return None
    members = archive.infolist()
    entries = [
        Entry(one.filename.removesuffix(".npy"), _member_detail(archive, one) or "not an array", one.file_size)
        for one in members[:_ARRAYS]
    ]
    return Contents(len(members), entries, "array")


def _member_detail(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> str | None:
    if member.compress_type not in _UNPACKED:
        return None
    try:
        with archive.open(member) as opened:
            return _npy_detail(opened)
    except (zipfile.BadZipFile, zlib.error, RuntimeError, EOFError, OSError, ArithmeticError, ValueError):
        return None


def read_safetensors(file: BinaryIO, size: int) -> Contents | None:
    start = file.read(8)
    length = struct.unpack("<Q", start)[0] if len(start) == struct.calcsize("<Q") else size
    if length > min(size, _MAX_HEADER):
        return None
    try:
        header = json.loads(file.read(length))
        tensors = [(name, one) for name, one in header.items() if name != "__metadata__"]
        entries = [Entry(name, *_tensor_detail(one)) for name, one in islice(tensors, _ENTRIES)]
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, ArithmeticError, RecursionError):
        return None
    return Contents(len(tensors), entries, "tensor")


def _tensor_detail(tensor: dict[str, Any]) -> tuple[str, int | None]:
    """Return the type and shape of a tensor, and its size."""
    start, stop = tensor["data_offsets"]
    size = int(stop) - int(start)
    detail = f"{str(tensor['dtype'])[:_DETAIL]} {_shape(tensor['shape'])}"[:_DETAIL]
    return detail, size if 0 <= size < _MAX_SIZE else None


def read_zip(file: BinaryIO, _size: int) -> Contents | None:
    """Read the members of an archive; None: it is not one, or it has too many."""
    archive = _open_zip(file)
    if archive is None:
        return None
    members = archive.infolist()
    entries = [Entry(one.filename, f"{one.compress_size:,} bytes packed", one.file_size) for one in members[:_ENTRIES]]
    return Contents(len(members), entries, "member")


class _BoundedReader:
    """A file that refuses to be read in large parts.

    `zipfile` reads the directory of an archive into memory at once. Its size is a number in the archive, of which there
    are two, for small and for large archives.
    """

    def __init__(self, file: BinaryIO) -> None:
        self.seek, self.tell, self.seekable = file.seek, file.tell, file.seekable
        self._read = file.read

    def read(self, size: int = -1) -> bytes:
        """Read `size` bytes, or all. Raises `ValueError`: these are too many."""
        if size > _MAX_DIRECTORY:
            raise ValueError(size)
        content = self._read(size if size >= 0 else _MAX_DIRECTORY + 1)
        if len(content) > _MAX_DIRECTORY:
            raise ValueError(len(content))
        return content


def _open_zip(file: BinaryIO) -> zipfile.ZipFile | None:
    try:
        return zipfile.ZipFile(cast("IO[bytes]", _BoundedReader(file)))
    except (zipfile.BadZipFile, ValueError, OSError, NotImplementedError):
        return None


def _npy_detail(file: IO[bytes]) -> str | None:
    start = file.read(8)
    width = 2 if start[6:7] == b"\x01" else 4
    prefix = file.read(width)
    if not start.startswith(_MAGIC) or len(prefix) < width:
        return None
    length = int.from_bytes(prefix, "little")
    found = _NPY_FIELDS.fullmatch(file.read(length).decode("latin-1")) if length <= _NPY_HEADER else None
    if found is None:
        return None
    order = ", Fortran order" if found["fortran"] == "True" else ""
    try:
        shape = _shape([int(one) for one in re.findall(r"\d+", found["shape"])])
    except ValueError:  # more digits than Python converts
        return None
    kind = found["name"] if found["fields"] is None else found["fields"]
    return f"{kind} {shape}{order}"[:_DETAIL]


def _shape(lengths: list[int]) -> str:
    return f"({', '.join(f'{int(length):,}' for length in lengths)})" if lengths else "scalar"
