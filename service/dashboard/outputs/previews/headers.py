"""Headers of binary files: arrays of NumPy, tensors of safetensors, members of zip archives."""

import ast
import json
import struct
import zipfile
from dataclasses import dataclass
from itertools import islice
from typing import BinaryIO

_ENTRIES = 1000
_MAX_HEADER = 8 * 1024**2
_NPY_HEADER = 64 * 1024
_MAGIC = b"\x93NUMPY"
_END_RECORD = b"PK\x05\x06"
_END_BYTES = 22
_MAX_COMMENT = 65_535


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
    """Read the header of an array; None: it is not one."""
    detail = _npy_detail(file)
    return None if detail is None else Contents(1, [Entry("array", detail, size)], "array")


def read_npz(file: BinaryIO, size: int) -> Contents | None:
    """Read the headers of the arrays in an archive; None: it is not one."""
    archive = _open_zip(file, size)
    if archive is None:
        return None
    entries = []
    for member in archive.infolist()[:_ENTRIES]:
        try:
            with archive.open(member) as opened:
                detail = _npy_detail(opened)  # type: ignore[arg-type]  # a file that can be read
        except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, OSError, ValueError):
            detail = None
        entries.append(Entry(member.filename.removesuffix(".npy"), detail or "not an array", member.file_size))
    return Contents(len(archive.infolist()), entries, "array")


def read_safetensors(file: BinaryIO, size: int) -> Contents | None:
    """Read the header of a file of tensors; None: it is not one."""
    start = file.read(8)
    length = struct.unpack("<Q", start)[0] if len(start) == struct.calcsize("<Q") else size
    if length > min(size, _MAX_HEADER):
        return None
    try:
        header = json.loads(file.read(length))
        tensors = [(name, one) for name, one in header.items() if name != "__metadata__"]
        entries = [
            Entry(name, f"{one['dtype']} {_shape(one['shape'])}", one["data_offsets"][1] - one["data_offsets"][0])
            for name, one in islice(tensors, _ENTRIES)
        ]
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError):
        return None
    return Contents(len(tensors), entries, "tensor")


def read_zip(file: BinaryIO, size: int) -> Contents | None:
    """Read the members of an archive; None: it is not one, or it has too many."""
    archive = _open_zip(file, size)
    if archive is None:
        return None
    members = archive.infolist()
    entries = [Entry(one.filename, f"{one.compress_size:,} bytes packed", one.file_size) for one in members[:_ENTRIES]]
    return Contents(len(members), entries, "member")


def _open_zip(file: BinaryIO, size: int) -> zipfile.ZipFile | None:
    # The library reads the whole directory of the archive into memory: its size is checked first.
    file.seek(max(0, size - _END_BYTES - _MAX_COMMENT))
    end = file.read()
    at = end.rfind(_END_RECORD)
    if at < 0 or len(end) - at < _END_BYTES or struct.unpack_from("<I", end, at + 12)[0] > _MAX_HEADER:
        return None
    try:
        return zipfile.ZipFile(file)
    except (zipfile.BadZipFile, ValueError, OSError, NotImplementedError):
        return None


def _npy_detail(file: BinaryIO) -> str | None:
    start = file.read(8)
    width = 2 if start[6:7] == b"\x01" else 4
    prefix = file.read(width)
    if not start.startswith(_MAGIC) or len(prefix) < width:
        return None
    length = int.from_bytes(prefix, "little")
    if length > _NPY_HEADER:
        return None
    try:
        header = ast.literal_eval(file.read(length).decode("latin-1").strip())
        order = ", Fortran order" if header["fortran_order"] else ""
        return f"{header['descr']} {_shape(header['shape'])}{order}"[:_ENTRIES]
    except (ValueError, SyntaxError, KeyError, TypeError, MemoryError, RecursionError):
        return None


def _shape(lengths: tuple[int, ...] | list[int]) -> str:
    return f"({', '.join(f'{int(length):,}' for length in lengths)})" if lengths else "scalar"
