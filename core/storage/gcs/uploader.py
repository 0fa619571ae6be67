"""Sends an attempt's staged files, several in parallel, and remembers what was sent."""

import hashlib
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from google.api_core.exceptions import NotFound
from google.cloud import storage

from core.errors import ArtifactNotFound, StoreUnavailable
from core.storage.artifacts.manifests import ArtifactFile, Manifest, ManifestReader, write_manifest
from core.storage.artifacts.store import OpenArtifact
from core.storage.gcs.client import translate_errors
from core.storage.gcs.transfer import FileChanged, upload_file

_TRIES = 3
_MAX_NAME_BYTES = 1024


def object_name(base: str, path: str) -> str:
    """Return the object name of a public path.

    A public path contains no `%0A` and no `%0D`, so no two paths get the same name.
    """
    name = f"{base}files/" + path.replace("\n", "%0A").replace("\r", "%0D")
    if len(name.encode()) > _MAX_NAME_BYTES:
        return f"{base}long/{hashlib.sha256(path.encode()).hexdigest()}"
    return name


@dataclass(frozen=True)
class Uploader:
    bucket: storage.Bucket
    base: str
    staged: Callable[[str], OpenArtifact]
    upload_list: Path  # file that remembers what was sent, across restarts; without it everything is sent again
    parallel: int

    def upload(self, files: Iterable[ArtifactFile], *, final: bool = False) -> list[ArtifactFile]:
        """Send new and changed files.

        Returns the files in the bucket, ordered by path, each with the sha256 of what was sent.

        Args:
            files: All staged files, with their sha256 if it was computed.
            final: The job has ended: a file that differs from its entry is an error.
        """
        sent = {file.path: file for file in self._read_uploaded()}
        wanted = {file.path: file for file in files}
        due = [file for file in wanted.values() if not _is_sent(file, sent.get(file.path))]
        failed: list[StoreUnavailable] = []
        try:
            with ThreadPoolExecutor(self.parallel, thread_name_prefix="send") as pool:
                for file, outcome in zip(due, pool.map(partial(self._upload_file, final=final), due), strict=True):
                    if isinstance(outcome, StoreUnavailable):
                        failed.append(outcome)
                    elif outcome is not None:
                        sent[file.path] = outcome
        finally:
            self._write_uploaded(sent.values())
        if failed:
            raise failed[0]
        return sorted(file for path, file in sent.items() if path in wanted)

    def drop(self, kept: Iterable[ArtifactFile]) -> None:
        """Remove objects that are no longer wanted; to be called once no list names them."""
        sent = {file.path: file for file in self._read_uploaded()}
        wanted = {file.path for file in kept}
        stale = [self.bucket.blob(object_name(self.base, path)) for path in sent.keys() - wanted]
        if stale:
            remove_all(stale, self.parallel)
            self._write_uploaded(file for path, file in sent.items() if path in wanted)

    def _upload_file(self, file: ArtifactFile, *, final: bool) -> ArtifactFile | StoreUnavailable | None:
        """Send one file; return None if it is missing or changing, which may be over next time."""
        blob = self.bucket.blob(object_name(self.base, file.path))
        for _ in range(_TRIES if final else 1):
            try:
                with self.staged(file.path).file as opened:
                    sha256 = upload_file(blob, opened)
            except (FileChanged, ArtifactNotFound):
                continue
            except StoreUnavailable as error:
                return error
            if file.sha256 in {None, sha256}:
                return file._replace(sha256=sha256)
        return StoreUnavailable(f"{file.path!r} changed after the job had ended.") if final else None

    def _read_uploaded(self) -> list[ArtifactFile]:
        try:
            with ManifestReader(self.upload_list) as upload_list:
                return list(upload_list.files())
        except FileNotFoundError:
            return []

    def _write_uploaded(self, sent: Iterable[ArtifactFile]) -> None:
        self.upload_list.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        files = sorted(sent)
        header = Manifest("partial", len(files), sum(file.size for file in files), ())
        write_manifest(self.upload_list, header, files, durable=False)


def _is_sent(file: ArtifactFile, sent: ArtifactFile | None) -> bool:
    if sent is None or (file.size, file.mtime_ms) != (sent.size, sent.mtime_ms):
        return False
    # A program can rewrite a file and reset its time; only the sha256 shows that, and it is computed at the end.
    return file.sha256 in {None, sent.sha256}


def remove_all(blobs: Iterable[storage.Blob], parallel: int) -> None:
    """Remove objects; missing ones are not an error."""
    with translate_errors("removing"), ThreadPoolExecutor(parallel, thread_name_prefix="remove") as pool:
        for _ in pool.map(_remove, blobs):
            pass


def _remove(blob: storage.Blob) -> None:
    with suppress(NotFound):
        blob.delete()
