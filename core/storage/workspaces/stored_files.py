"""Files of the stores of workspaces and packs: named by digest, received and discarded by rename."""

import hashlib
import os
import re
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, NamedTuple

from core.errors import WorkspaceInvalid
from core.system.untrusted_folders import move

_BLOCK = 1024**2
_SHA256 = re.compile(r"[0-9a-f]{64}")


class StoredFile(NamedTuple):
    """A stored file: its digest, its bytes, and when it was last stored or named by a new job (Unix seconds)."""

    sha256: str
    size: int
    used_at: float


class ReceivedFile(NamedTuple):
    """An upload in a temporary file, with the digest and number of its bytes."""

    path: Path
    sha256: str
    size: int


def check_sha256(sha256: str) -> None:
    if not _SHA256.fullmatch(sha256):
        raise WorkspaceInvalid(
            f"workspaceSha256: {sha256[:80]!r} is not a sha256; send 64 lower-case hexadecimal digits",
            field="workspaceSha256",
        )


def metadata_path(file: Path) -> Path:
    return file.with_name(f"{file.name}.json")


def list_files(folder: Path) -> Iterator[StoredFile]:
    """Yield the files of a folder that are named by their digest, in no particular order."""
    for file in folder.iterdir():
        if _SHA256.fullmatch(file.name):
            with suppress(FileNotFoundError):
                status = file.stat()
                yield StoredFile(file.name, status.st_size, status.st_mtime)


@contextmanager
def receive(stream: BinaryIO, incoming: Path, max_bytes: int) -> Iterator[ReceivedFile]:
    """Read a stream to its end into a temporary file, which is deleted at the end unless it was renamed."""
    incoming.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=incoming)
    try:
        with open(descriptor, "wb") as out:  # noqa: PTH123 - opens a descriptor, which Path cannot
            sha256, size = _copy(stream, out, max_bytes)
        yield ReceivedFile(Path(name), sha256, size)
    finally:
        Path(name).unlink(missing_ok=True)


def set_aside(path: Path, incoming: Path, unused_since: float) -> bool:
    """Delete a file that was not used since a time (Unix seconds); returns whether it was deleted."""
    incoming.mkdir(parents=True, exist_ok=True)
    aside = incoming / f"withdrawn-{os.getpid()}-{threading.get_ident()}-{path.name}"
    try:
        if path.stat().st_mtime >= unused_since:
            return False
        move(path, aside)
    except FileNotFoundError:
        return False
    # Checked again after the rename: the file may have been used between the check and the rename.
    with suppress(FileNotFoundError):  # `sweep_temporary` may delete the renamed file too
        if aside.stat().st_mtime >= unused_since:
            move(aside, path)
            return False
        aside.unlink()
    return True


def _copy(stream: BinaryIO, out: BinaryIO, max_bytes: int) -> tuple[str, int]:
    digest = hashlib.sha256()
    size = 0
    while block := stream.read(_BLOCK):
        size += len(block)
        if size > max_bytes:
            raise WorkspaceInvalid(
                f"workspace: the upload is larger than {max_bytes} bytes, the limit here; leave data sets and "
                "checkpoints out (.gradientignore) and keep them in storage instead",
                field="workspace",
            )
        digest.update(block)
        out.write(block)
    out.flush()
    os.fsync(out.fileno())
    return digest.hexdigest(), size
