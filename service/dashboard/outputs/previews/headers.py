"""Headers of binary files: tensors of safetensors, members of zip archives."""

import json
import struct
import zipfile
from dataclasses import dataclass
from itertools import islice
from typing import IO, Any, BinaryIO, cast

_ENTRIES = 1000
_MAX_HEADER = 1024**2
_MAX_DIRECTORY = 2 * 1024**2
_MAX_SIZE = 1 << 63
_DETAIL = 1000


@dataclass(frozen=True, slots=True)
class Entry:
    """A tensor or a member."""

    name: str
    detail: str  # type and shape of a tensor, packed size of a member
    size: int | None  # in bytes, if that is known


@dataclass(frozen=True, slots=True)
class Contents:
    """The contents of a file: their total number, and the first of them."""

    total: int
    entries: list[Entry]
    noun: str


def read_safetensors(file: BinaryIO, size: int) -> Contents | None:
    start = file.read(8)
    length = struct.unpack("<Q", start)[0] if len(start) == struct.calcsize("<Q") else size
    if length > min(size, _MAX_HEADER):
        return None
    try:
        header = json.loads(file.read(length))
        tensors = [(name, tensor) for name, tensor in header.items() if name != "__metadata__"]
        entries = [Entry(name, *_tensor_detail(tensor)) for name, tensor in islice(tensors, _ENTRIES)]
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
    entries = [
        Entry(member.filename, f"{member.compress_size:,} bytes packed", member.file_size)
        for member in members[:_ENTRIES]
    ]
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


def _shape(lengths: list[int]) -> str:
    return f"({', '.join(f'{int(length):,}' for length in lengths)})" if lengths else "scalar"
