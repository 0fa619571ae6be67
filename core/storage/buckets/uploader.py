"""Sends an attempt's staged files, several in parallel, and remembers what was sent."""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import BinaryIO

from core.errors import ArtifactNotFound, StoreUnavailable
from core.storage.artifacts.manifests import ArtifactFile, Manifest, ManifestReader, write_manifest
from core.storage.artifacts.store import OpenArtifact

_TRIES = 3
_PARALLEL = 4  # files that are sent at once; each may hold two parts in memory
_MAX_FAILURES = 8  # a bucket that is away is not tried for each of thousands of files


class FileChanged(Exception):
    """The file changed while it was being sent."""


@dataclass(frozen=True)
class Uploader:
    staged: Callable[[str], OpenArtifact]
    send: Callable[[str, BinaryIO], str]  # sends the file of a public path, and returns the sha256 of what it sent
    prepare: Callable[[list[str]], None]  # is told the paths of the files that will be sent
    upload_list: Path  # file that remembers what was sent, across restarts; without it everything is sent again

    def upload(self, files: Iterable[ArtifactFile], *, final: bool = False) -> list[ArtifactFile]:
        """Send new and changed files.

        Returns the files in the bucket, ordered by path, each with the sha256 of what was sent.

        Args:
            files: All staged files, with their sha256 if it was computed.
            final: The job has ended: a file that differs from its entry is an error.
        """
        sent = self.sent()
        wanted = {file.path: file for file in files}
        due = [file for file in wanted.values() if not _is_sent(file, sent.get(file.path))]
        self.prepare([file.path for file in due])
        failed: list[StoreUnavailable] = []
        try:
            with ThreadPoolExecutor(_PARALLEL, thread_name_prefix="send") as pool:
                for outcome in pool.map(partial(self._upload_file, failed=failed, final=final), due):
                    if outcome is not None:
                        sent[outcome.path] = outcome
        finally:
            self.remember(sent.values())
        if failed:
            raise failed[0]
        return sorted(file._replace(mode=wanted[path].mode) for path, file in sent.items() if path in wanted)

    def sent(self) -> dict[str, ArtifactFile]:
        """Return what is in the bucket, by path."""
        try:
            with ManifestReader(self.upload_list) as upload_list:
                return {file.path: file for file in upload_list.files()}
        except FileNotFoundError:
            return {}

    def remember(self, sent: Iterable[ArtifactFile]) -> None:
        self.upload_list.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        files = sorted(sent)
        header = Manifest("partial", len(files), sum(file.size for file in files), ())
        write_manifest(self.upload_list, header, files, durable=False)

    def _upload_file(self, file: ArtifactFile, *, failed: list[StoreUnavailable], final: bool) -> ArtifactFile | None:
        """Send one file; return None if it is missing or changing, which may be over next time, or failed."""
        for _ in range(_TRIES if final else 1):
            if len(failed) >= _MAX_FAILURES:
                return None
            try:
                with self.staged(file.path).file as opened:
                    sha256 = self.send(file.path, opened)
            except (FileChanged, ArtifactNotFound):
                continue
            except StoreUnavailable as error:
                failed.append(error)
                return None
            if file.sha256 in {None, sha256}:
                return file._replace(sha256=sha256)
        if final:
            failed.append(StoreUnavailable(f"{file.path!r} changed after the job had ended."))
        return None


def _is_sent(file: ArtifactFile, sent: ArtifactFile | None) -> bool:
    if sent is None or (file.size, file.mtime_ms) != (sent.size, sent.mtime_ms):
        return False
    # A program can rewrite a file and reset its time; only the sha256 shows that, and it is computed at the end.
    return file.sha256 in {None, sent.sha256}
