"""Single files in a bucket, each an object below a prefix; for those who know the names themselves."""

from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from typing import BinaryIO

from core.settings import Settings
from core.storage.buckets.client import open_bucket, translate_errors
from core.storage.buckets.objects import attachment, remove_all
from core.storage.buckets.transfer import open_object, sign_download, upload_file


class BucketFiles:
    """`kind`: of the files, the first part of their names below the prefix of the settings."""

    def __init__(self, settings: Settings, kind: str) -> None:
        self._bucket, prefix = open_bucket(settings)
        self._prefix = f"{prefix}{kind}/"

    def put(self, name: str, file: BinaryIO, path: str) -> str:
        """Send an open file, and return the sha256 of what was sent. `path`: its last part names a download."""
        return upload_file(self._bucket, self._prefix + name, file, attachment(path))

    def open(self, name: str) -> BinaryIO | None:
        opened = open_object(self._bucket, self._prefix + name)
        return None if opened is None else opened[0]

    def sign(self, name: str, valid: timedelta) -> str | None:
        return sign_download(self._bucket, self._prefix + name, valid)

    def remove(self, names: Sequence[str]) -> None:
        """Delete files; missing ones are not an error."""
        remove_all(self._bucket, [self._prefix + name for name in names])


def measure_bucket(settings: Settings) -> dict[str, tuple[int, int]]:
    """Return the number of objects and their bytes, by the kinds of files that the service keeps."""
    bucket, prefix = open_bucket(settings)
    counts, sizes = Counter[str](), Counter[str]()
    with translate_errors("listing"):
        for batch in bucket.list(prefix or None, chunk_size=1000):
            for meta in batch:
                kind = meta["path"][len(prefix) :].partition("/")[0]
                counts[kind] += 1
                sizes[kind] += meta["size"]
    return {kind: (counts[kind], sizes[kind]) for kind in counts}
