"""Reads the lists and manifests of a bucket through copies on this machine's disk."""

import hashlib
import os
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import IO

from google.api_core.exceptions import NotFound, PreconditionFailed
from google.cloud import storage

from core.storage.artifacts.manifests import LISTING, MANIFEST, ManifestReader
from core.storage.gcs.client import translate_errors

_MAX_COPIES = 200
_TRIES = 3


class ManifestGone(Exception):
    """A list was removed or replaced since it was found."""


class ManifestCache:
    """The lists of all attempts. `folder`: folder for the copies; the least recently used are deleted first."""

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
