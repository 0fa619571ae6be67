"""Artifacts of jobs on a host that shares only the network with its service."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, cast

from core.errors import StoreUnavailable
from core.storage.artifacts.manifests import (
    LISTING,
    MANIFEST,
    ArtifactFile,
    ArtifactFolder,
    Manifest,
    ManifestReader,
    write_manifest,
)
from core.storage.artifacts.received import PIECE_BYTES, Piece, pack
from core.storage.artifacts.store import CLOSE_ALL, Closing, DirectoryStore, OpenArtifact, SyncResult
from core.storage.buckets.uploader import Uploader
from worker.service_link.bucket_uploads import BucketUploads
from worker.service_link.link import ServiceLink

_SECONDS = 120.0  # the service flushes what has arrived to its disk
_SPOOLED_BYTES = 8 << 20
_COPY_BYTES = 1 << 20
_TRIES = 3


class ServiceArtifacts(DirectoryStore):
    """Mirrors and closes artifacts in a folder of this host, where they are links, and sends them to the service.

    What is read of an attempt is what the service has.
    """

    def __init__(self, root: Path, link: ServiceLink) -> None:
        super().__init__(root)
        self._link = link
        self._sent: dict[tuple[str, int], bytes] = {}  # the last list of each attempt whose files have all been sent

    def sync(self, job_id: str, attempt: int, source: Path, *, final: bool = False) -> SyncResult:
        result = super().sync(job_id, attempt, source, final=final)
        self._send(job_id, attempt, LISTING)
        return result

    def close(self, job_id: str, attempt: int, source: Path, closing: Closing = CLOSE_ALL) -> Manifest:
        manifest = super().close(job_id, attempt, source, closing)
        self._send(job_id, attempt, MANIFEST)
        self._sent.pop((job_id, attempt), None)
        self.remove_attempt(job_id, attempt)
        return manifest

    def walk(self, job_id: str, attempt: int, start: str = "") -> Iterator[ArtifactFile]:
        files = (ArtifactFile(*fields) for fields in self._list(job_id, attempt)["files"])
        return (file for file in files if file.path >= start)

    def folders(self, job_id: str, attempt: int) -> tuple[ArtifactFolder, ...]:
        return tuple(ArtifactFolder(*fields) for fields in self._list(job_id, attempt)["folders"])

    def open(self, job_id: str, attempt: int, path: str) -> OpenArtifact:
        copy = tempfile.SpooledTemporaryFile(_SPOOLED_BYTES)  # noqa: SIM115 - the caller closes it
        with self._link.open_file(f"jobs/{job_id}/{attempt}/artifacts/file", {"file": path}) as answer:
            shutil.copyfileobj(answer, copy, _COPY_BYTES)
        size = copy.tell()
        copy.seek(0)
        return OpenArtifact(cast("BinaryIO", copy), size, None, 0)

    def _list(self, job_id: str, attempt: int) -> dict[str, list[list[Any]]]:
        listing: dict[str, list[list[Any]]] = self._link.read_json(
            "GET", f"jobs/{job_id}/{attempt}/artifacts", seconds=_SECONDS
        )
        return listing

    def _send(self, job_id: str, attempt: int, name: str) -> None:
        """Send the list of this name, and the files that the service lacks; of the manifest until it has all of them.

        Raises `StoreUnavailable`: the service does not answer. A retry continues where this ended.
        """
        listed = self._directory(job_id, attempt) / name
        if not listed.exists():  # there are no artifacts
            return
        data = listed.read_bytes()
        if self._sent.get((job_id, attempt)) == data:
            return
        bucket = self._link.read_json("POST", f"jobs/{job_id}/{attempt}/artifacts/uploads", b"[]")
        if bucket is not None:
            self._send_to_bucket(job_id, attempt, listed, bucket)
            self._sent[job_id, attempt] = data
            return
        lacking = -1
        while missing := self._send_list(job_id, attempt, data, final=name == MANIFEST):
            arrived = sum(missing.values())
            rest = sum(file.size + 1 for file in self._files_of(listed, missing)) - arrived
            if lacking in range(rest + 1):  # files that the job is writing to: a later sync sends them
                if name == LISTING:
                    return
                raise StoreUnavailable(f"The service does not accept {len(missing)} artifacts, e.g. {min(missing)!r}.")
            lacking = rest
            self._send_files(job_id, attempt, listed, missing)
        self._sent[job_id, attempt] = data

    def _send_to_bucket(self, job_id: str, attempt: int, listed: Path, bucket: dict[str, Any]) -> None:
        """Put what is new into the service's bucket, and send the list of what is there.

        What is too large for one request goes through the service. Raises `StoreUnavailable`: bucket or service do not
        answer, or the bucket lacks a file of the manifest.
        """
        if bucket["closed"]:
            return
        with ManifestReader(listed) as reader:
            header, files = reader.manifest, list(reader.files())
        large = [file for file in files if file.size > bucket["largest"]]
        uploads = BucketUploads(self._link, f"jobs/{job_id}/{attempt}/artifacts")
        uploader = Uploader(
            staged=lambda path: DirectoryStore.open(self, job_id, attempt, path),
            send=uploads.send,
            prepare=uploads.prepare,
            upload_list=listed.parent / "sent.jsonl",
        )
        final = listed.name == MANIFEST
        for _ in range(_TRIES):
            there = uploader.upload((file for file in files if file.size <= bucket["largest"]), final=final)
            # The job may still rewrite its files: only the manifest promises a sha256.
            kept = sorted([*there, *large]) if final else sorted(f._replace(sha256=None) for f in [*there, *large])
            write_manifest(listed.parent / "kept.jsonl", header, kept, durable=False)
            missing = self._send_list(job_id, attempt, (listed.parent / "kept.jsonl").read_bytes(), final=final)
            if not missing:
                return
            self._send_files(
                job_id, attempt, listed, {file.path: missing[file.path] for file in large if file.path in missing}
            )
            uploader.remember(file for file in there if file.path not in missing)
        if final:
            raise StoreUnavailable(f"The bucket lacks {len(missing)} artifacts, e.g. {min(missing)!r}.")

    def _send_list(self, job_id: str, attempt: int, data: bytes, *, final: bool) -> dict[str, int]:
        """Send a list; return what the service lacks: by path, the bytes of the file that it has."""
        path = f"jobs/{job_id}/{attempt}/artifacts"
        missing: dict[str, int] = self._link.read_json("PUT", path, data, {"final": final}, _SECONDS)
        return missing

    def _files_of(self, listed: Path, missing: dict[str, int]) -> Iterator[ArtifactFile]:
        with ManifestReader(listed) as reader:
            yield from (file for file in reader.files() if file.path in missing)

    def _send_files(self, job_id: str, attempt: int, listed: Path, missing: dict[str, int]) -> None:
        """Send files, many small ones in one request and large ones in several."""
        pieces: list[Piece] = []
        room = PIECE_BYTES
        for file, offset, data in self._pieces(job_id, attempt, listed, missing):
            if pieces and len(data) > room:
                self._send_pieces(job_id, attempt, pieces)
                pieces, room = [], PIECE_BYTES
            pieces.append(Piece(file, offset, data))
            room -= len(data)
        if pieces:
            self._send_pieces(job_id, attempt, pieces)

    def _send_pieces(self, job_id: str, attempt: int, pieces: list[Piece]) -> None:
        self._link.request("POST", f"jobs/{job_id}/{attempt}/artifacts", pack(pieces), seconds=_SECONDS)

    def _pieces(self, job_id: str, attempt: int, listed: Path, missing: dict[str, int]) -> Iterator[Piece]:
        files = list(self._files_of(listed, missing))
        for file, opened in zip(files, self.open_many(job_id, attempt, files), strict=True):
            with opened.file as content:
                offset = missing[file.path]
                content.seek(offset)
                while offset < file.size or not file.size:
                    data = content.read(min(PIECE_BYTES, file.size - offset))
                    if data or not file.size:  # else it has become shorter
                        yield Piece(file, offset, data)
                    if not data:
                        break
                    offset += len(data)
