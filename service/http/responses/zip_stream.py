"""A job's artifacts as one zip, created while it is sent."""

import re
from collections.abc import Callable, Iterator

from zipstream import ZIP_DEFLATED, ZIP_STORED, ZipStream

from core.errors import ArtifactNotFound
from core.storage.artifacts.store import ArtifactFile, ArtifactStore

_BLOCK = 256 * 1024
_UNSAFE = re.compile(r"[\\\x00-\x1f\x7f]")
_COMPRESSED_SUFFIXES = (
    ".gz",
    ".zip",
    ".png",
    ".jpg",
    ".jpeg",
    ".webp",
    ".gif",
    ".keras",
    ".h5",
    ".npz",
    ".mp4",
    ".zst",
)


def zip_blocks(
    store: ArtifactStore, job_id: str, attempt: int, folder: str, *, selected: Callable[[str], bool]
) -> Iterator[bytes]:
    """Yield the bytes of a zip with the files of an attempt whose path `selected` accepts, in a folder of this name.

    One file is open at a time and one block in memory; only the list of names at the end grows with their number.
    """
    stream = ZipStream(compress_type=ZIP_DEFLATED, compress_level=1)
    for file in store.walk(job_id, attempt):
        if not selected(file.path):
            continue
        kind = ZIP_STORED if file.path.lower().endswith(_COMPRESSED_SUFFIXES) else ZIP_DEFLATED
        blocks = _blocks(store, job_id, attempt, file)
        first = next(blocks, None)
        if first is None:
            continue
        stream.add(_prepend(first, blocks), f"{folder}/{safe_name(file.path)}", compress_type=kind)
        yield from stream.all_files()  # written one by one, so that the stream never holds a list of pending files
    yield from stream.finalize()


def safe_name(path: str) -> str:
    """Make a path safe to unpack on every system: no `..`, no leading slash, backslashes or control characters."""
    parts = [_UNSAFE.sub("_", part) for part in path.split("/")]
    return "/".join(part for part in parts if part not in {"", ".", ".."})


def _blocks(store: ArtifactStore, job_id: str, attempt: int, file: ArtifactFile) -> Iterator[bytes]:
    try:
        opened = store.open(job_id, attempt, file.path)
    except ArtifactNotFound:
        if file.sha256 is not None:
            raise  # deleted during the download: break off, so that the zip is not taken as complete
        return  # the running job has deleted it
    with opened.file:
        yield b""
        while block := opened.file.read(_BLOCK):
            yield block


def _prepend(first: bytes, rest: Iterator[bytes]) -> Iterator[bytes]:
    yield first
    yield from rest
