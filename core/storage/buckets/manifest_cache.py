"""The lists of all attempts in a bucket, copied to this machine's disk."""

import hashlib
import os
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from core.storage.artifacts.manifests import LISTING, MANIFEST, ManifestReader
from core.storage.buckets.client import REPLACED, Bucket, translate_errors
from core.system.untrusted_folders import move

if TYPE_CHECKING:  # of its stubs only
    from obstore import ObjectMeta

_MAX_COPIES = 200
_TRIES = 3


class ManifestGone(Exception):
    """A list was removed or replaced since it was found."""


class ManifestCache:
    """`folder`: of the copies; the oldest are deleted."""

    def __init__(self, bucket: Bucket, folder: Path) -> None:
        self._bucket = bucket
        self._folder = folder

    def open(self, base: str) -> ManifestReader | None:
        """Return the list of the attempt whose objects begin with `base`: its manifest, else its listing."""
        for _ in range(_TRIES):
            meta = self._find(base)
            if meta is None:
                return None
            # Closing removes the listing after the manifest is written: the next try finds the manifest.
            with suppress(ManifestGone):
                return self._copy(meta)
        return None

    def manifest(self, base: str) -> ManifestReader | None:
        meta = self._find(base)
        return self._copy(meta) if meta is not None and meta["path"].endswith(MANIFEST) else None

    def _find(self, base: str) -> "ObjectMeta | None":
        """Find the manifest or else the listing, in one request."""
        with translate_errors("looking for a list of artifacts"):
            there = {meta["path"]: meta for meta in self._bucket.list_with_delimiter(base)["objects"]}
        return there.get(base + MANIFEST) or there.get(base + LISTING)

    def _copy(self, meta: "ObjectMeta") -> ManifestReader:
        identity = f"{meta['path']}#{meta['e_tag']}#{meta['last_modified']}"
        copy = self._folder / hashlib.sha256(identity.encode()).hexdigest()
        with suppress(FileNotFoundError):
            opened = ManifestReader(copy)
            os.utime(copy)
            return opened
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor, arriving = tempfile.mkstemp(dir=self._folder, prefix="new-")
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(self._fetch(meta))
            opened = ManifestReader(Path(arriving))
            move(Path(arriving), copy)  # another thread may have written the same content first
        finally:
            Path(arriving).unlink(missing_ok=True)
        self._drop_oldest()
        return opened

    def _fetch(self, meta: "ObjectMeta") -> bytes:
        with translate_errors("reading a list of artifacts"):
            try:
                return self._bucket.get(meta["path"], options={"if_match": meta["e_tag"]}).bytes().to_bytes()
            except (FileNotFoundError, *REPLACED) as error:
                raise ManifestGone from error

    def _drop_oldest(self) -> None:
        copies = sorted((_used_at(copy), copy) for copy in self._folder.iterdir())
        for _, copy in copies[:-_MAX_COPIES]:
            copy.unlink(missing_ok=True)


def _used_at(copy: Path) -> float:
    with suppress(FileNotFoundError):
        return copy.stat().st_mtime
    return 0.0
