"""Artifacts in a bucket.

Layout: `<prefix>/artifacts/<job id>/<attempt>/` with `files/` (the objects), `listing.jsonl` (while the job runs) and
`manifest.jsonl` (written last). The job's files are first mirrored by hard link into a staging folder on this machine,
under the rules for any folder that a job writes to, and sent from there. The folder is emptied when the manifest is in
the bucket.
"""

import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import obstore
from obstore.store import AzureStore

from core.ids import checked_job_id
from core.settings import Settings
from core.storage.artifacts.manifests import LISTING, MANIFEST, ArtifactFile, ManifestReader, reduced, write_manifest
from core.storage.artifacts.paths import not_found, parse_public_path
from core.storage.artifacts.received import parse_list
from core.storage.artifacts.store import (
    CLOSE_ALL,
    ArtifactStore,
    Closing,
    DirectoryStore,
    Manifest,
    OpenArtifact,
    SyncResult,
)
from core.storage.buckets.client import REPLACED, Bucket, open_bucket, translate_errors
from core.storage.buckets.manifest_cache import ManifestCache
from core.storage.buckets.objects import attachment, object_name, remove_all
from core.storage.buckets.transfer import open_object, sign_download, upload_file
from core.storage.buckets.uploader import Uploader

if TYPE_CHECKING:  # of its stubs only
    from obstore import ObjectMeta, UpdateVersion

_SIGNED_FOR = timedelta(minutes=5)  # a browser follows the redirect at once
_UPLOADS_SIGNED_FOR = timedelta(minutes=15)
LARGEST_PUT = 4 << 30  # bytes of one request; S3 and Azure take 5,000 MiB


class BucketStore(ArtifactStore):
    """Artifacts in a bucket.

    What is not in the bucket is looked up in the staging folder: artifacts from before the bucket stay readable.
    StoreUnavailable means that the bucket does not answer; a retry resumes.
    """

    def __init__(
        self,
        bucket: Bucket,
        prefix: str,  # prefix of all objects' names; empty, or ends with a slash
        *,
        staging: DirectoryStore,  # holds an attempt's files until its manifest is in the bucket
        cache: Path,  # a folder for copies of lists, and for records of what was sent
        gives_links: bool = False,  # to the bucket itself
    ) -> None:
        self._bucket = bucket
        self._prefix = prefix
        self.staging = staging
        self._upload_lists = cache / "sent"
        self._manifests = ManifestCache(bucket, cache / "lists")
        self._gives_links = gives_links

    @classmethod
    def from_settings(cls, settings: Settings, staging: DirectoryStore) -> "BucketStore":
        bucket, prefix = open_bucket(settings)
        prefix += "artifacts/"
        cache = settings.root / "cache" / "artifacts"
        return cls(bucket, prefix, staging=staging, cache=cache, gives_links=settings.store.signed_urls)

    def sync(self, job_id: str, attempt: int, source: Path, *, final: bool = False) -> SyncResult:
        if manifest := self._manifest(job_id, attempt):
            return SyncResult(manifest.files, manifest.bytes, manifest.skipped)
        staged = self.staging.sync(job_id, attempt, source, final=final)
        folders = self.staging.folders(job_id, attempt)
        # The job may still rewrite stored files, so no sha256 is promised yet.
        kept = [file._replace(sha256=None) for file in self.forward(job_id, attempt)]
        listing = Manifest("partial", len(kept), sum(file.size for file in kept), staged.skipped, folders)
        self.write_list(job_id, attempt, LISTING, listing, kept)
        self._drop(job_id, attempt, kept)
        return SyncResult(listing.files, listing.bytes, listing.skipped)

    def close(self, job_id: str, attempt: int, source: Path, closing: Closing = CLOSE_ALL) -> Manifest:
        manifest = self._manifest(job_id, attempt)
        if manifest is None:
            manifest = self.staging.close(job_id, attempt, source, closing)
            kept = self.forward(job_id, attempt, final=True)
            self.write_list(job_id, attempt, MANIFEST, manifest, kept)
            self._drop(job_id, attempt, kept)
        # A repeat removes what a crash left.
        remove_all(self._bucket, [self.base(job_id, attempt) + LISTING])
        self.staging.remove_attempt(job_id, attempt)
        self._upload_list(job_id, attempt).unlink(missing_ok=True)
        return manifest

    def open_list(self, job_id: str, attempt: int) -> ManifestReader | None:
        return self._manifests.open(self.base(job_id, attempt)) or self.staging.open_list(job_id, attempt)

    def open_many(self, job_id: str, attempt: int, files: Iterable[ArtifactFile]) -> Iterator[OpenArtifact]:
        for file in files:
            opened = open_object(self._bucket, object_name(self._bucket, self.base(job_id, attempt), file.path))
            if opened is None:
                yield from self.staging.open_many(job_id, attempt, [file])
            else:
                yield OpenArtifact(*opened, file.sha256, file.mtime_ms)

    def last_attempt(self, job_id: str) -> int:
        with translate_errors("listing attempts"):
            folders = self._bucket.list_with_delimiter(self.base(job_id))["common_prefixes"]
        attempts = [int(folder.rpartition("/")[2]) for folder in folders]
        return max([*attempts, self.staging.last_attempt(job_id)])

    def discard(self, job_id: str, attempt: int, selected: Callable[[str], bool]) -> int:
        base = self.base(job_id, attempt)
        while True:
            closed, opened = self._head(base + MANIFEST), self._manifests.manifest(base)
            if closed is None or opened is None:
                return 0
            with opened:
                files, before = list(opened.files()), opened.manifest
            kept = [file for file in files if not selected(file.path)]
            header = reduced(before, files, kept)
            versions = {key: closed[key] for key in ("e_tag", "version") if closed[key] is not None}
            with suppress(*REPLACED):
                self._write_manifest(base + MANIFEST, header, kept, cast("UpdateVersion", versions))
                gone = [object_name(self._bucket, base, file.path) for file in files if selected(file.path)]
                remove_all(self._bucket, gone)
                return len(gone)

    def remove(self, job_id: str) -> None:
        with translate_errors("listing what is to be removed"):
            names = [meta["path"] for meta in self._bucket.list(self.base(job_id)).collect()]
        remove_all(self._bucket, names)
        self.staging.remove(job_id)
        for upload_list in self._upload_lists.glob(f"{job_id}-*.jsonl"):
            upload_list.unlink(missing_ok=True)

    def receiver(self, job_id: str, attempt: int) -> "BucketReceiver":
        return BucketReceiver(self, self._bucket, job_id, attempt)

    def is_closed(self, job_id: str, attempt: int) -> bool:
        return self._manifest(job_id, attempt) is not None

    def forward(self, job_id: str, attempt: int, *, final: bool = False) -> Sequence[ArtifactFile]:
        """Send what is new in the staging folder; return its files that are in the bucket, with their sha256."""
        return self._uploader(job_id, attempt).upload(self.staging.walk(job_id, attempt), final=final)

    def write_list(
        self, job_id: str, attempt: int, name: str, manifest: Manifest, files: Sequence[ArtifactFile]
    ) -> None:
        """Write an attempt's listing, or its manifest unless there is one."""
        with suppress(*REPLACED):  # written by an earlier try whose answer was lost
            self._write_manifest(
                self.base(job_id, attempt) + name, manifest, files, "create" if name == MANIFEST else "overwrite"
            )

    def link(self, job_id: str, attempt: int, path: str, *, for_worker: bool = False) -> str | None:
        opened = self._manifests.open(self.base(job_id, attempt)) if self._gives_links or for_worker else None
        if opened is None:
            return None
        with opened:
            entry = opened.get(path)
        if entry is None:
            raise not_found(path)
        if entry.sha256 is None:
            return None
        return sign_download(self._bucket, object_name(self._bucket, self.base(job_id, attempt), path), _SIGNED_FOR)

    def base(self, job_id: str, attempt: int | None = None) -> str:
        return f"{self._prefix}{checked_job_id(job_id)}/" + ("" if attempt is None else f"{attempt}/")

    def _manifest(self, job_id: str, attempt: int) -> Manifest | None:
        opened = self._manifests.manifest(self.base(job_id, attempt))
        if opened is None:
            return None
        with opened:
            return opened.manifest

    def _head(self, name: str) -> "ObjectMeta | None":
        with translate_errors(f"looking for {name!r}"), suppress(FileNotFoundError):
            return self._bucket.head(name)
        return None

    def _uploader(self, job_id: str, attempt: int) -> Uploader:
        base = self.base(job_id, attempt)
        return Uploader(
            staged=lambda path: self.staging.open(job_id, attempt, path),
            send=lambda path, file: upload_file(
                self._bucket, object_name(self._bucket, base, path), file, attachment(path)
            ),
            prepare=lambda _paths: None,
            upload_list=self._upload_list(job_id, attempt),
        )

    def _drop(self, job_id: str, attempt: int, kept: Iterable[ArtifactFile]) -> None:
        """Remove objects that no list names any more."""
        uploader = self._uploader(job_id, attempt)
        sent, wanted = uploader.sent(), {file.path for file in kept}
        if stale := sent.keys() - wanted:
            remove_all(self._bucket, [object_name(self._bucket, self.base(job_id, attempt), path) for path in stale])
            uploader.remember(file for path, file in sent.items() if path in wanted)

    def _upload_list(self, job_id: str, attempt: int) -> Path:
        return self._upload_lists / f"{job_id}-{attempt}.jsonl"

    def _write_manifest(
        self,
        name: str,
        manifest: Manifest,
        files: Sequence[ArtifactFile],
        mode: "Literal['create', 'overwrite'] | UpdateVersion",
    ) -> None:
        with tempfile.TemporaryDirectory(prefix="gradient-list-") as folder:
            path = Path(folder) / "list.jsonl"
            write_manifest(path, manifest, files, durable=False)
            with translate_errors(f"writing {name!r}"):
                self._bucket.put(name, path.read_bytes(), mode=mode, use_multipart=False)


class BucketReceiver:
    """Takes the artifacts of one attempt, whose objects begin with `base`.

    What is too large for one request comes in pieces, through the service's disk, as where it has no bucket.
    """

    def __init__(self, store: BucketStore, bucket: Bucket, job_id: str, attempt: int) -> None:
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
                    self._bucket,
                    "PUT",
                    [object_name(self._bucket, self._base, path) for path in paths],
                    _UPLOADS_SIGNED_FOR,
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
            sizes = {meta["path"]: meta["size"] for meta in self._bucket.list(self._base).collect()}
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
