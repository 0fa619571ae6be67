"""Artifacts in a bucket of Cloud Storage.

Layout: `<prefix>/<job id>/<attempt>/` with `files/` (the objects), `listing.jsonl` (while the job runs) and
`manifest.jsonl` (written last). The job's files are first mirrored by hard link into a staging folder on this machine,
under the rules for any folder that a job writes to, and sent from there. The folder is emptied when the manifest is in
the bucket.
"""

import hashlib
import io
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import IO, BinaryIO, cast

from google.api_core.exceptions import NotFound, PreconditionFailed
from google.cloud import storage

from core.ids import checked_job_id
from core.settings import Settings
from core.storage.artifacts.folder_mirror import Stopped, never
from core.storage.artifacts.manifests import LISTING, MANIFEST, ArtifactFile, ManifestReader, write_manifest
from core.storage.artifacts.paths import not_found, parse_public_path
from core.storage.artifacts.scan import Skipped
from core.storage.artifacts.store import ArtifactPage, DirectoryStore, Manifest, OpenArtifact, SyncResult, read_page
from core.storage.gcs.client import open_client, translate_errors
from core.storage.gcs.signed_urls import signed_url
from core.storage.gcs.transfer import PARALLEL_FILES, RemoteFile
from core.storage.gcs.uploader import Uploader, object_name, remove_all

_SIGNED_URL_SECONDS = 300.0  # a browser follows the redirect at once

_MAX_COPIES = 200
_TRIES = 3


class ManifestGone(Exception):
    """A list was removed or replaced since it was found."""


class ManifestCache:
    """The lists of all attempts, copied to this machine's disk. `folder`: of the copies; the oldest are deleted."""

    def __init__(self, bucket: storage.Bucket, folder: Path) -> None:
        self._bucket = bucket
        self._folder = folder

    def open(self, base: str) -> ManifestReader | None:
        """Return the list of the attempt whose objects begin with `base`: its manifest, else its listing."""
        for _ in range(_TRIES):
            found = self._find(base)
            if found is None:
                return None
            # Closing removes the listing after the manifest is written: the next try finds the manifest.
            with suppress(ManifestGone):
                return self._copy(found)
        return None

    def manifest(self, base: str) -> ManifestReader | None:
        found = self._find(base)
        return self._copy(found) if found is not None and found.name.endswith(MANIFEST) else None

    def generation(self, name: str) -> int | None:
        """Return the current generation of the list of this name; None if there is none."""
        with translate_errors(f"looking for {name!r}"):
            blob = self._bucket.get_blob(name)
        return None if blob is None else int(blob.generation)

    def _find(self, base: str) -> storage.Blob | None:
        """Find the manifest or else the listing, with its current generation, in one request."""
        with translate_errors("looking for a list of artifacts"):
            there = {blob.name: blob for blob in self._bucket.list_blobs(prefix=base, delimiter="/")}
        return there.get(base + MANIFEST) or there.get(base + LISTING)

    def _copy(self, blob: storage.Blob) -> ManifestReader:
        name = hashlib.sha256(f"{blob.bucket.name}/{blob.name}#{blob.generation}".encode()).hexdigest()
        copy = self._folder / name
        with suppress(FileNotFoundError):
            opened = ManifestReader(copy)
            os.utime(copy)
            return opened
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor, arriving = tempfile.mkstemp(dir=self._folder, prefix="new-")
        try:
            with os.fdopen(descriptor, "wb") as file:
                _fetch(blob, file)
            opened = ManifestReader(Path(arriving))
            Path(arriving).replace(copy)  # another thread may have written the same content first
        finally:
            Path(arriving).unlink(missing_ok=True)
        self._drop_oldest()
        return opened

    def _drop_oldest(self) -> None:
        copies = sorted((_used_at(copy), copy) for copy in self._folder.iterdir())
        for _, copy in copies[:-_MAX_COPIES]:
            copy.unlink(missing_ok=True)


def _used_at(copy: Path) -> float:
    with suppress(FileNotFoundError):
        return copy.stat().st_mtime
    return 0.0


def _fetch(blob: storage.Blob, file: IO[bytes]) -> None:
    with translate_errors("reading a list of artifacts"):
        try:
            blob.download_to_file(file, if_generation_match=blob.generation, checksum="crc32c")
        except (NotFound, PreconditionFailed) as error:
            raise ManifestGone from error


class BucketStore:
    """Artifacts in a bucket.

    What is not in the bucket is looked up in the staging folder: artifacts from before the bucket stay readable.
    StoreUnavailable means that the bucket does not answer; a retry resumes.
    """

    def __init__(
        self,
        bucket: storage.Bucket,
        prefix: str,  # prefix of all objects' names; empty, or ends with a slash
        *,
        staging: DirectoryStore,  # holds an attempt's files until its manifest is in the bucket
        cache: Path,  # a folder for copies of lists, and for records of what was sent
        parallel: int = 8,
        direct_seconds: float | None = None,  # validity of signed URLs to the bucket; None: none are given out
    ) -> None:
        self._bucket = bucket
        self._prefix = prefix
        self._staging = staging
        self._upload_lists = cache / "sent"
        self._manifests = ManifestCache(bucket, cache / "lists")
        self._parallel = parallel
        self._direct_seconds = direct_seconds

    @classmethod
    def from_settings(cls, settings: Settings, staging: DirectoryStore) -> "BucketStore":
        name, _, prefix = (settings.artifacts.url or "").removeprefix("gs://").partition("/")
        return cls(
            open_client(settings.gcs).bucket(name),
            f"{prefix.strip('/')}/" if prefix.strip("/") else "",
            staging=staging,
            cache=settings.root / "cache" / "artifacts",
            parallel=PARALLEL_FILES,
            direct_seconds=_SIGNED_URL_SECONDS if settings.artifacts.signed_urls else None,
        )

    def sync(self, job_id: str, attempt: int, source: Path, *, final: bool = False) -> SyncResult:
        if manifest := self._manifest(job_id, attempt):
            return SyncResult(manifest.files, manifest.bytes, manifest.skipped)
        staged = self._staging.sync(job_id, attempt, source, final=final)
        sender = self._uploader(job_id, attempt)
        # The job may still rewrite stored files, so no sha256 is promised yet.
        kept = [file._replace(sha256=None) for file in sender.upload(self._staging.walk(job_id, attempt))]
        listing = Manifest("partial", len(kept), sum(file.size for file in kept), staged.skipped)
        self._put_manifest(job_id, attempt, LISTING, listing, kept)
        sender.drop(kept)
        return SyncResult(listing.files, listing.bytes, listing.skipped)

    def close(
        self,
        job_id: str,
        attempt: int,
        source: Path,
        *,
        lost: Sequence[Skipped] = (),
        max_bytes: int | None = None,
        stopped: Stopped = never,
    ) -> Manifest:
        manifest = self._manifest(job_id, attempt)
        if manifest is None:
            manifest = self._staging.close(job_id, attempt, source, lost=lost, max_bytes=max_bytes, stopped=stopped)
            sender = self._uploader(job_id, attempt)
            kept = sender.upload(self._staging.walk(job_id, attempt), final=True)
            self._put_manifest(job_id, attempt, MANIFEST, manifest, kept)
            sender.drop(kept)
        # A repeat removes what a crash left.
        remove_all([self._bucket.blob(self._base(job_id, attempt) + LISTING)], self._parallel)
        self._staging.remove_attempt(job_id, attempt)
        self._upload_list(job_id, attempt).unlink(missing_ok=True)
        return manifest

    def list(
        self, job_id: str, attempt: int, *, prefix: str = "", after: str | None = None, limit: int = 1_000
    ) -> ArtifactPage:
        opened = self._files(job_id, attempt)
        if opened is None:
            return self._staging.list(job_id, attempt, prefix=prefix, after=after, limit=limit)
        with opened:
            return read_page(opened, prefix, after, limit)

    def open(self, job_id: str, attempt: int, path: str) -> OpenArtifact:
        parse_public_path(path)
        opened = self._files(job_id, attempt)
        if opened is None:
            return self._staging.open(job_id, attempt, path)
        with opened:
            entry = opened.get(path)
        blob = None if entry is None else self._blob(job_id, attempt, path)
        if entry is None or blob is None:
            raise not_found(path)
        # Exactly one generation: a file that is replaced while it is read would be half of each.
        pinned = self._bucket.blob(blob.name, generation=blob.generation)
        file = cast("BinaryIO", io.BufferedReader(RemoteFile(pinned, blob.size)))
        return OpenArtifact(file, blob.size, entry.sha256, entry.mtime_ms)

    def open_many(self, job_id: str, attempt: int, files: Iterable[ArtifactFile]) -> Iterator[OpenArtifact]:
        for file in files:
            yield self.open(job_id, attempt, file.path)

    def walk(self, job_id: str, attempt: int, start: str = "") -> Iterator[ArtifactFile]:
        opened = self._files(job_id, attempt)
        if opened is None:
            yield from self._staging.walk(job_id, attempt, start)
            return
        with opened:
            yield from opened.files(start)

    def last_attempt(self, job_id: str) -> int:
        base = self._base(job_id)
        with translate_errors("listing attempts"):
            listing = self._bucket.list_blobs(prefix=base, delimiter="/")
            for _ in listing.pages:
                pass  # the folders are complete once every page was read
        attempts = [int(folder.removeprefix(base).rstrip("/")) for folder in listing.prefixes]
        return max([*attempts, self._staging.last_attempt(job_id)])

    def discard(self, job_id: str, attempt: int, selected: Callable[[str], bool]) -> int:
        """Delete the files of a closed attempt whose public path is selected by `selected`; return how many.

        The manifest is rewritten first; of two concurrent deletions each keeps what the other left.
        """
        base = self._base(job_id, attempt)
        while True:
            generation, opened = self._manifests.generation(base + MANIFEST), self._manifests.manifest(base)
            if generation is None or opened is None:
                return 0
            with opened:
                files, before = list(opened.files()), opened.manifest
            kept = [one for one in files if not selected(one.path)]
            header = replace(before, files=len(kept), bytes=sum(one.size for one in kept))
            with suppress(PreconditionFailed):
                self._write_manifest(base + MANIFEST, header, kept, if_generation_match=generation)
                gone = [self._bucket.blob(object_name(base, one.path)) for one in files if selected(one.path)]
                remove_all(gone, self._parallel)
                return len(gone)

    def remove(self, job_id: str) -> None:
        base = self._base(job_id)
        with translate_errors("listing what is to be removed"):
            blobs = list(self._bucket.list_blobs(prefix=base))
        remove_all(blobs, self._parallel)
        self._staging.remove(job_id)
        for upload_list in self._upload_lists.glob(f"{job_id}-*.jsonl"):
            upload_list.unlink(missing_ok=True)

    def folder(self, job_id: str, attempt: int) -> Path | None:
        del job_id, attempt
        return None

    def link(self, job_id: str, attempt: int, path: str, headers: dict[str, str]) -> str | None:
        opened = None if self._direct_seconds is None else self._files(job_id, attempt)
        if opened is None or self._direct_seconds is None:
            return None
        with opened:
            entry = opened.get(path)
        if entry is None:
            raise not_found(path)
        if entry.sha256 is None:
            return None
        blob = self._bucket.blob(object_name(self._base(job_id, attempt), path))
        with translate_errors("signing a URL"):
            return signed_url(blob, self._direct_seconds, headers)

    def _base(self, job_id: str, attempt: int | None = None) -> str:
        return f"{self._prefix}{checked_job_id(job_id)}/" + ("" if attempt is None else f"{attempt}/")

    def _files(self, job_id: str, attempt: int) -> ManifestReader | None:
        return self._manifests.open(self._base(job_id, attempt))

    def _manifest(self, job_id: str, attempt: int) -> Manifest | None:
        opened = self._manifests.manifest(self._base(job_id, attempt))
        if opened is None:
            return None
        with opened:
            return opened.manifest

    def _blob(self, job_id: str, attempt: int, path: str) -> storage.Blob | None:
        name = object_name(self._base(job_id, attempt), path)
        with translate_errors(f"looking for {name!r}"):
            return self._bucket.get_blob(name)

    def _uploader(self, job_id: str, attempt: int) -> Uploader:
        return Uploader(
            bucket=self._bucket,
            base=self._base(job_id, attempt),
            staged=lambda path: self._staging.open(job_id, attempt, path),
            upload_list=self._upload_list(job_id, attempt),
            parallel=self._parallel,
        )

    def _upload_list(self, job_id: str, attempt: int) -> Path:
        return self._upload_lists / f"{job_id}-{attempt}.jsonl"

    def _put_manifest(
        self, job_id: str, attempt: int, name: str, manifest: Manifest, files: Sequence[ArtifactFile]
    ) -> None:
        base = self._base(job_id, attempt)
        with suppress(PreconditionFailed):  # written by an earlier try whose answer was lost
            self._write_manifest(
                base + name, manifest, files, **({"if_generation_match": 0} if name == MANIFEST else {})
            )

    def _write_manifest(self, name: str, manifest: Manifest, files: Sequence[ArtifactFile], **condition: int) -> None:
        with tempfile.TemporaryDirectory(prefix="gradient-list-") as folder:
            path = Path(folder) / "list.jsonl"
            write_manifest(path, manifest, files, durable=False)
            blob, refused = self._bucket.blob(name), None
            with translate_errors(f"writing {name!r}"):
                try:
                    blob.upload_from_filename(
                        str(path), content_type="application/x-ndjson", checksum="crc32c", **condition
                    )
                except PreconditionFailed as error:
                    refused = error
            if refused is not None:
                raise refused
