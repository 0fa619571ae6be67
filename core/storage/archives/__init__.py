"""Reads workspace archives, which are untrusted input.

Both formats are read here by hand, because the standard library accepts truncated and ambiguous archives and reads
some headers without a limit (`docs/decisions/0019-our-own-readers-of-archives.md`). Names are made safe, every byte is
counted as it is unpacked, checksums are verified, and links may only point inside.
"""

import io
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from core.storage.archives.folder_writer import FolderWriter
from core.storage.archives.limits import ArchiveKind, ArchiveLimits, ArchiveSummary, Budget, invalid
from core.storage.archives.tar_reader import GzipStream, is_tar_header, read_tar
from core.storage.archives.tree import ArchiveEntry, EntryKind, EntryTree, Parts
from core.storage.archives.zip_reader import read_zip
from core.system.trees import move, remove_tree

__all__ = ["ArchiveKind", "ArchiveLimits", "ArchiveSummary", "extract", "fill_folder", "inspect", "read_entries"]

_MAGIC_BYTES = 1024
_ZIP_STARTS = (b"PK\x03\x04", b"PK\x05\x06")
_GZIP_START = b"\x1f\x8b"
_OTHER_FORMATS = {
    b"BZh": "bzip2",
    b"\xfd7zXZ": "xz",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"7z\xbc\xaf": "7-Zip",
    b"Rar!": "RAR",
}
_STREAM_BUFFER = 256 * 1024


def inspect(path: Path, limits: ArchiveLimits) -> ArchiveSummary:
    """Read a whole archive as `extract` would, but write nothing.

    `path`: a zip, tar.gz or tar file, recognized by content, not by name.
    """
    return _unpack(path, limits, None)


def extract(path: Path, destination: Path, limits: ArchiveLimits) -> ArchiveSummary:
    """Unpack an archive into a folder, all of it or nothing.

    Files go to a hidden folder next to the destination (`.NAME.unpacking-…`) which is renamed to the destination at the
    end. It is removed if the archive is refused; only a crash leaves it behind. Unix permissions and times are
    restored; owners and setuid bits are not. `destination`: where its entries go: an empty folder or a free name, in a
    folder that exists.
    """
    with fill_folder(destination) as writer:
        return _unpack(path, limits, writer)


@contextmanager
def fill_folder(destination: Path) -> Iterator[FolderWriter]:
    """Yield a writer that fills a folder: it appears at its destination once complete, as `extract` describes."""
    staging = tempfile.mkdtemp(prefix=f".{destination.name}.unpacking-", dir=destination.parent)
    try:
        with FolderWriter(staging) as writer:
            yield writer
        Path(staging).chmod(0o755)
        move(Path(staging), destination)
    except BaseException:
        with suppress(OSError):
            remove_tree(Path(staging))
        raise


def _unpack(path: Path, limits: ArchiveLimits, writer: FolderWriter | None) -> ArchiveSummary:
    tree = EntryTree(limits)
    budget = Budget(limits)
    with path.open("rb") as file:
        kind, entries = read_entries(file, limits, budget)
        for entry in entries:
            parts = tree.add(entry)
            if entry.kind is EntryKind.HARD_LINK:
                target = tree.hard_link_target(entry)
                if writer:
                    writer.hard_link(parts, target)
            elif entry.kind is EntryKind.FOLDER:
                if writer and parts:
                    writer.folder(parts, entry)
            elif entry.kind is EntryKind.FILE:
                _write_contents(entry, parts, writer)
    links = tree.symlinks()
    if writer:
        writer.finish(links)
    return ArchiveSummary(kind, tree.files, budget.bytes)


def _write_contents(entry: ArchiveEntry, parts: Parts, writer: FolderWriter | None) -> None:
    if writer:
        writer.file(parts, entry)
    else:
        for _ in entry.chunks:
            pass


def read_entries(file: BinaryIO, limits: ArchiveLimits, budget: Budget) -> tuple[ArchiveKind, Iterator[ArchiveEntry]]:
    """Return the format of an open archive and its entries, whose names are not checked.

    The format is detected by the first bytes: the content type and name that clients send are unreliable.
    """
    start = file.read(_MAGIC_BYTES)
    file.seek(0)
    if start.startswith(_ZIP_STARTS):
        return ArchiveKind.ZIP, read_zip(file, limits, budget)
    if start.startswith(_GZIP_START):
        stream = io.BufferedReader(GzipStream(file, budget), _STREAM_BUFFER)
        return ArchiveKind.TAR_GZ, read_tar(stream, limits, budget)
    if is_tar_header(start):
        return ArchiveKind.TAR, read_tar(file, limits, budget)
    if not start:
        raise invalid("the file is empty; send a zip or a tar.gz of the folder")
    for magic, name in _OTHER_FORMATS.items():
        if start.startswith(magic):
            raise invalid(f"it is a {name} file; send a zip or a tar.gz of the folder")
    raise invalid("it is neither a zip nor a tar.gz; send a zip or a tar.gz of the folder")
