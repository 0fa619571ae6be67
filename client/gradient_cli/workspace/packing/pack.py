"""Packing of the contents that a server lacks into one archive, each named by its SHA-256.

Thousands of small files take most of their time in `tarfile`, so the blocks of the archive are written here.
"""

from __future__ import annotations

import hashlib
import tarfile
from collections.abc import Callable
from gzip import GzipFile

from gradient_cli.errors import ClientError
from gradient_cli.workspace.packing.archive import (
    CHANGED_HINT,
    Archive,
    WorkspaceEntry,
    changed_error,
    open_file,
    write_archive,
)

_BLOCK = 512
_PART = 1 << 20
_DIGITS = 64
_SIZE = slice(124, 135)
_CHECKSUM = slice(148, 156)
_MOST_OCTAL = 8**11 - 1


def create_pack(
    root: str, contents: dict[str, WorkspaceEntry], read: dict[str, bytes], progress: Callable[[int], None]
) -> Archive:
    """Write files into a temporary tar.gz file, each named by the SHA-256 of its content."""

    def write(packed: GzipFile) -> None:
        done = 0
        for sha256, entry in contents.items():
            header, padding = _header(sha256, entry.size), bytes(-entry.size % _BLOCK)
            content = read.get(sha256)
            if content is not None:
                packed.write(header + content + padding)
            else:
                packed.write(header)
                _copy(root, entry, sha256, packed)
                packed.write(padding)
            done += entry.size
            progress(done)
        packed.write(bytes(2 * _BLOCK))

    return write_archive(write)


def _copy(root: str, entry: WorkspaceEntry, sha256: str, packed: GzipFile) -> None:
    digest, left = hashlib.sha256(), entry.size
    with open_file(root, entry) as file:
        while left:
            try:
                part = file.read(min(left, _PART))
            except OSError as error:
                raise ClientError(f"workspace: cannot pack {entry.path}: {error.strerror}", hint=CHANGED_HINT) from None
            if not part:
                raise changed_error(entry)
            digest.update(part)
            packed.write(part)
            left -= len(part)
    if digest.hexdigest() != sha256:
        raise changed_error(entry)


def _tar_header(name: str, size: int) -> bytes:
    header = tarfile.TarInfo(name)
    header.size = size
    return header.tobuf(tarfile.GNU_FORMAT)


_TEMPLATE = _tar_header("0" * _DIGITS, 0)


def _header(sha256: str, size: int) -> bytes:
    """Return the header of a content: the template with another name, size and checksum."""
    if size > _MOST_OCTAL:
        return _tar_header(sha256, size)
    block = bytearray(_TEMPLATE)
    block[:_DIGITS] = sha256.encode()
    block[_SIZE] = b"%011o" % size
    block[_CHECKSUM] = b" " * 8
    block[_CHECKSUM] = b"%06o\0 " % sum(block)
    return bytes(block)
