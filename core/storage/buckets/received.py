"""Artifacts that a worker on another host writes to the bucket by itself, with signed URLs; the service checks them."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import obstore
from obstore.store import AzureStore

from core.storage.artifacts.manifests import LISTING, MANIFEST, ArtifactFile
from core.storage.artifacts.paths import parse_public_path
from core.storage.artifacts.received import parse_list
from core.storage.buckets.client import Bucket, translate_errors
from core.storage.buckets.objects import attachment, object_name, remove_all

if TYPE_CHECKING:
    from core.storage.buckets.artifacts import BucketStore

LARGEST_PUT = 4 << 30  # bytes of one request; S3 and Azure take 5,000 MiB
_SIGNED_FOR = timedelta(minutes=15)


class BucketReceiver:
    """Takes the artifacts of one attempt, whose objects begin with `base`.

    What is too large for one request comes in pieces, through the service's disk, as where it has no bucket.
    """

    def __init__(self, store: "BucketStore", bucket: Bucket, job_id: str, attempt: int) -> None:
        self._store = store
        self._bucket = bucket
        self._job_id = job_id
        self._attempt = attempt
        self._base = store.base(job_id, attempt)

    def sign(self, paths: Sequence[str]) -> dict[str, Any]:
        """Return where to put files, each with the headers to send: URLs that are valid for a while.

        `closed`: no more files are taken. `largest`: bytes of a file that can be put.
        """
        for path in paths:
            parse_public_path(path)
        answer: dict[str, Any] = {"closed": self._closed, "largest": LARGEST_PUT, "uploads": []}
        if paths and not answer["closed"]:
            with translate_errors("signing URLs"):
                urls = obstore.sign(
                    self._bucket, "PUT", [object_name(self._bucket, self._base, one) for one in paths], _SIGNED_FOR
                )
            answer["uploads"] = [[url, self._headers(path)] for url, path in zip(urls, paths, strict=True)]
        return answer

    def add(self, body: bytes) -> None:
        if not self._closed:
            self._store.staging.receiver(self._job_id, self._attempt).add(body)

    def take_list(self, data: bytes, *, final: bool) -> dict[str, int]:
        """Take the list of files, and publish it as far as they are in the bucket, with the size that it names.

        Returns the files that are missing: by path, the bytes of each that came through the service.

        Args:
            data: A list as `write_manifest` writes it, with the sha256 of what was sent.
            final: It is the manifest, which is written once all files are there; other objects are deleted then.
        """
        if self._closed:
            return {}
        header, files = parse_list(data)
        arrived = self._forward(data, files)
        with translate_errors("listing what has arrived"):
            sizes = {one["path"]: one["size"] for one in self._bucket.list(self._base).collect()}
        names = {file.path: object_name(self._bucket, self._base, file.path) for file in files}
        here = [file for file in files if file.path not in arrived and sizes.get(names[file.path]) == file.size]
        if not final:
            listing = replace(header, files=len(here), bytes=sum(file.size for file in here))
            self._store.write_list(self._job_id, self._attempt, LISTING, listing, here)
        elif len(here) == len(files):
            self._store.write_list(self._job_id, self._attempt, MANIFEST, header, files)
            remove_all(self._bucket, [*sizes.keys() - {*names.values(), self._base + MANIFEST}])
            self._store.staging.remove_attempt(self._job_id, self._attempt)
        missing = {file.path for file in files} - {file.path for file in here}
        return {path: arrived.get(path, 0) for path in missing}

    def _forward(self, data: bytes, files: Sequence[ArtifactFile]) -> dict[str, int]:
        """Send the files that came through the service; return those that have not arrived whole, with their bytes."""
        large = {file.path for file in files if file.size > LARGEST_PUT}
        if not large:
            return {}
        arrived = self._store.staging.receiver(self._job_id, self._attempt).take_list(data, final=False)
        self._store.forward(self._job_id, self._attempt)
        return {path: size for path, size in arrived.items() if path in large}

    @property
    def _closed(self) -> bool:
        return self._store.is_closed(self._job_id, self._attempt)

    def _headers(self, path: str) -> dict[str, str]:
        headers = attachment(path)
        if isinstance(self._bucket, AzureStore):
            headers |= {"x-ms-blob-type": "BlockBlob", "x-ms-blob-content-disposition": headers["Content-Disposition"]}
        return headers
