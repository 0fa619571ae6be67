"""A part of a job's prefix through which a worker and a remote machine exchange messages."""

from pathlib import Path

from google.api_core.exceptions import NotFound, RequestRangeNotSatisfiable
from google.cloud import storage
from google.cloud.storage.retry import DEFAULT_RETRY

from core.storage.gcs.transfer import remove_all
from worker.backends.tpu.storage.errors import translate_bucket_errors

_CALL_SECONDS = (10.0, 30.0)  # for the connection, and for each answer
_RETRY = DEFAULT_RETRY.with_delay(initial=0.5, maximum=4.0)
"""Pauses after an outage: the default ones grow to a minute, in which a VM whose job has ended is billed."""


class Mailbox:
    """Objects below a prefix. Every method raises BucketRefused and StoreUnavailable.

    `bucket`: opened by a client that acts as the worker.
    """

    def __init__(self, bucket: storage.Bucket, prefix: str, parallel: int) -> None:
        self._bucket = bucket
        self._prefix = prefix
        self._parallel = parallel

    @property
    def bucket(self) -> str:
        return str(self._bucket.name)

    @property
    def prefix(self) -> str:
        return self._prefix

    def of_host(self, rank: int) -> "Mailbox":
        return Mailbox(self._bucket, f"{self._prefix}hosts/{rank}/", self._parallel)

    def put(self, name: str, content: bytes | Path) -> None:
        """Write an object from bytes or from a file, replacing any earlier one."""
        blob = self._bucket.blob(self._prefix + name)
        with translate_bucket_errors(self.bucket, f"writing {name}"):
            if isinstance(content, Path):
                blob.upload_from_filename(str(content), checksum="crc32c", retry=_RETRY)
            else:
                blob.upload_from_string(content, checksum="crc32c", timeout=_CALL_SECONDS, retry=_RETRY)

    def get(self, name: str, most: int = 1 << 16, start: int = 0) -> bytes | None:
        """Return at most `most` bytes of an object from `start` on, as they are stored; None: there is no object."""
        blob = self._bucket.blob(self._prefix + name)
        with translate_bucket_errors(self.bucket, f"reading {name}"):
            try:
                # Raw: an object that is marked as compressed would be decompressed to any size.
                content: bytes = blob.download_as_bytes(
                    start=start, end=start + most - 1, timeout=_CALL_SECONDS, raw_download=True, retry=_RETRY
                )
            except NotFound:
                return None
            except RequestRangeNotSatisfiable:  # it has no more than that
                return b""
        return content

    def clear(self) -> None:
        """Remove all objects below the prefix."""
        with translate_bucket_errors(self.bucket, "emptying"):
            blobs = list(self._bucket.list_blobs(prefix=self._prefix, timeout=_CALL_SECONDS, retry=_RETRY))
        remove_all(blobs, self._parallel)
