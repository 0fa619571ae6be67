"""Many artifacts in one response, their bytes one after another."""

from collections.abc import Iterator, Sequence

from core.errors import StoreUnavailable
from core.storage.artifacts.store import ArtifactFile, ArtifactStore

_BLOCK = 64 * 1024


def joined_blocks(store: ArtifactStore, job_id: str, attempt: int, files: Sequence[ArtifactFile]) -> Iterator[bytes]:
    pending = bytearray()
    for file, opened in zip(files, store.open_many(job_id, attempt, files), strict=True):
        with opened.file:
            left = file.size
            while left:
                block = opened.file.read(min(_BLOCK, left))
                if not block:
                    raise StoreUnavailable(f"The artifact {file.path!r} is shorter than listed.")
                left -= len(block)
                pending += block
                if len(pending) >= _BLOCK:
                    yield bytes(pending)
                    pending.clear()
    yield bytes(pending)
