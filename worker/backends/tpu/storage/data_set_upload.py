"""Copies a data set from this machine to the bucket, for the TPU to read."""

import base64
import io
import os
import stat
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import BinaryIO

from google.cloud import storage
from google_crc32c import Checksum

from core.storage.artifacts.paths import to_public_path
from core.storage.artifacts.scan import SkipList, Skipped, scan
from core.storage.gcs.client import translate_errors
from core.system.untrusted_folders import OPEN_FILE, open_beneath
from worker.backends.tpu.cancellation import Check
from worker.backends.tpu.storage.errors import BucketRefused, translate_bucket_errors
from worker.backends.tpu.vm.on_vm.bucket import is_valid_name

MAX_BYTES = 100 << 30  # of the largest data set that is copied for a job
_BLOCK = 1 << 20
_CHUNK = 16 << 20  # of a resumable upload, held in memory


def upload_tree(
    bucket: storage.Bucket, prefix: str, name: str, source: int, *, parallel: int, check: Check
) -> tuple[Skipped, ...]:
    """Copy a file, or every regular file below a folder, and return what is left out, such as links.

    Objects that are there already are not sent again.

    Args:
        source: Descriptor of the file or folder; stays open.
        check: Called again and again; what it raises ends the copy.

    Raises:
        BucketRefused: The data set is too large, cannot be read, or changes while it is read.
        StoreUnavailable: The bucket does not answer; the next call resumes.
    """
    try:
        whole = stat.S_ISDIR(os.fstat(source).st_mode)
        skips = SkipList()
        sizes = _folder(source, prefix, skips) if whole else _file(source, name)
        if sum(sizes.values()) > MAX_BYTES:
            raise BucketRefused(
                "bucket_refused",
                f"The data set {name!r} holds {sum(sizes.values()):,} bytes; at most {MAX_BYTES:,} are copied "
                "to a bucket.",
            )
        _Uploader(bucket, prefix, source, check, whole=whole).copy(list(sizes), parallel)
    except OSError as error:
        raise BucketRefused("bucket_refused", f"The data set {name!r} cannot be read: {error}") from error
    return skips.entries()


def _folder(opened: int, prefix: str, skips: SkipList) -> dict[str, int]:
    scanned = scan(opened, skips)
    for path in scanned.links:
        skips.add(path, "a symbolic link is not followed")
    sizes = {path: seen.size for path, seen in scanned.files.items() if is_valid_name(prefix + to_public_path(path))}
    for path in scanned.files.keys() - sizes.keys():
        skips.add(path, "the name has a line break, or is too long for Cloud Storage")
    return sizes


def _file(opened: int, name: str) -> dict[str, int]:
    status = os.fstat(opened)
    if not stat.S_ISREG(status.st_mode):
        raise BucketRefused("bucket_refused", f"The data set {name!r} is neither a file nor a folder.")
    return {name: status.st_size}


class _Uploader:
    def __init__(self, bucket: storage.Bucket, prefix: str, source: int, check: Check, *, whole: bool) -> None:
        self._bucket = bucket
        self._prefix = prefix
        self._source = source
        self._whole = whole
        self._check = check
        with translate_bucket_errors(bucket.name, "listing"):
            self._existing = {blob.name: (blob.size, blob.crc32c) for blob in bucket.list_blobs(prefix=prefix)}

    def copy(self, paths: list[str], parallel: int) -> None:
        with ThreadPoolExecutor(parallel, thread_name_prefix="stage") as pool:
            for _ in pool.map(self._upload, paths):
                pass

    def _open(self, path: str) -> int:
        if not self._whole:
            return os.dup(self._source)
        *parents, last = path.split("/")
        parent = open_beneath(self._source, parents)
        try:
            return os.open(last, OPEN_FILE, dir_fd=parent)
        finally:
            os.close(parent)

    def _upload(self, path: str) -> None:
        self._check()
        with _CheckedFile(self._open(path), self._check) as file:
            name = self._prefix + to_public_path(path)
            if name in self._existing and self._existing[name] == self._measure(file.fileno()):
                return
            file.seek(0)
            if not _send(self._bucket.blob(name), file):
                raise BucketRefused("bucket_refused", f"{path!r} of the data set changed while it was copied.")

    def _measure(self, descriptor: int) -> tuple[int, str]:
        """Return size and crc32c of a file, in the form that Cloud Storage reports them."""
        checksum, size = Checksum(), 0
        for block in _blocks(descriptor):
            self._check()
            checksum.update(block)
            size += len(block)
        return size, base64.b64encode(checksum.digest()).decode()


class _CheckedFile(io.FileIO):
    """A file whose every read checks first whether the copy must end."""

    def __init__(self, descriptor: int, check: Check) -> None:
        super().__init__(descriptor, "rb")
        self._check = check

    def read(self, size: int | None = -1, /) -> bytes:
        self._check()
        return super().read(size)


def _send(blob: storage.Blob, file: BinaryIO) -> bool:
    """Upload an open file, verified by crc32c; False: it was written to meanwhile."""
    before = os.fstat(file.fileno())
    blob.chunk_size = _CHUNK
    with translate_errors(f"sending {blob.name!r}"):
        try:
            blob.upload_from_file(file, size=before.st_size, content_type="application/octet-stream", checksum="crc32c")
        except ValueError:  # it became shorter or longer
            return False
    after = os.fstat(file.fileno())
    return (after.st_size, after.st_mtime_ns) == (before.st_size, before.st_mtime_ns)


def _blocks(descriptor: int) -> Iterator[bytes]:
    at = 0
    while block := os.pread(descriptor, _BLOCK, at):
        at += len(block)
        yield block
