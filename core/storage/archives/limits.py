from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import BinaryIO

from core.errors import WorkspaceInvalid
from core.formatting import GIB, MIB

READ_BYTES = 256 * 1024  # bytes that are read at once
DAMAGED = "the archive is damaged or was cut short; pack the folder and send it again"

_SHOWN_CHARACTERS = 60
_ATTRIBUTES_PER_FILE = 10  # real archives have three to six for each file


class ArchiveKind(StrEnum):
    """Formats of stored workspaces: archives, and manifests of files."""

    ZIP = "zip"
    TAR = "tar"
    TAR_GZ = "tar.gz"
    MANIFEST = "manifest"


@dataclass(frozen=True)
class ArchiveLimits:
    """Bounds within which an archive is accepted."""

    max_upload_bytes: int = 10 * GIB
    max_bytes: int = 10 * GIB
    # most files, links and folders together, including folders that are only implied by a path
    max_files: int = 100_000
    max_ratio: int = 100  # most unpacked bytes per packed byte
    ratio_after: int = 10 * MIB  # unpacked bytes up to which the ratio does not matter
    max_depth: int = 32
    max_name_bytes: int = 255  # longest name between two slashes, in UTF-8
    max_path_bytes: int = 2048  # longest path or link target, in UTF-8


@dataclass(frozen=True)
class ArchiveSummary:
    kind: ArchiveKind
    files: int  # regular files and links in it; folders do not count
    bytes: int


def invalid(message: str) -> WorkspaceInvalid:
    """Build the error for a refused archive; its field is `workspace`."""
    return WorkspaceInvalid(f"workspace: {message}", field="workspace")


def shortened(name: str) -> str:
    """Quote an entry's name for a message, shortened and with anything unprintable escaped."""
    if len(name) > _SHOWN_CHARACTERS:
        half = _SHOWN_CHARACTERS // 2
        name = f"{name[:half]}…{name[-half:]}"
    return repr(name)


def read_exactly(file: BinaryIO, size: int) -> bytes:
    data = file.read(size)
    if len(data) != size:
        raise invalid(DAMAGED)
    return data


def read_blocks(file: BinaryIO, size: int) -> Iterator[bytes]:
    while size:
        block = read_exactly(file, min(size, READ_BYTES))
        size -= len(block)
        yield block


class Budget:
    """Counts the entries' bytes and extended attributes, and raises once there are too many."""

    def __init__(self, limits: ArchiveLimits) -> None:
        self._limits = limits
        self._attributes = 0
        self.bytes = 0

    def add(self, name: str, size: int) -> None:
        self.bytes += size
        if self.bytes > self._limits.max_bytes:
            raise invalid(
                f"with entry {shortened(name)} it unpacks to more than {self._limits.max_bytes} bytes, the limit here; "
                "leave data sets and checkpoints out (.gradientignore) and keep them in storage instead"
            )

    def add_attribute(self) -> None:
        """Count one extended attribute of an entry: attributes cost far more time to read than their bytes suggest."""
        self._attributes += 1
        if self._attributes > _ATTRIBUTES_PER_FILE * self._limits.max_files:
            raise invalid("its entries have too many extended attributes; pack without them (tar --no-xattrs)")

    def check_ratio(self, *, unpacked: int, packed: int) -> None:
        if unpacked > self._limits.ratio_after and unpacked > self._limits.max_ratio * packed:
            raise invalid(
                f"it unpacks to more than {self._limits.max_ratio} times its size, which looks like a decompression "
                "bomb; leave out files that are almost all zeros, or make them when the job starts"
            )
