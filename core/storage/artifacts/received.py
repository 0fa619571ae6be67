"""Artifacts that a worker on another host sends, as the service takes them: a list, files in pieces, the list again.

Below the attempt's folder of a `DirectoryStore`, besides what is there in any case: `incoming.parts/` with files that
have not arrived whole, and `received.jsonl` with those that have, each with the sha256 of what arrived.
"""

import fcntl
import hashlib
import json
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Annotated, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from core.errors import ArtifactNotFound, SpecInvalid
from core.storage.artifacts.folder_mirror import INCOMING
from core.storage.artifacts.hashing import flush_disk
from core.storage.artifacts.manifests import (
    LISTING,
    MANIFEST,
    ArtifactFile,
    ArtifactFolder,
    ArtifactsState,
    Manifest,
    write_manifest,
)
from core.storage.artifacts.paths import parse_public_path
from core.storage.artifacts.scan import Skipped
from core.system.filesystem import write_all, write_atomically
from core.system.untrusted_folders import opened_beneath, opened_folder, remove_tree

PIECE_BYTES = 8 << 20  # most bytes of files in one request
MAX_UPLOADS = 500  # URLs in one answer
_RECEIVED = "received.jsonl"
_PERMISSIONS = 0o755  # of what `ownership` leaves


class Piece(NamedTuple):
    """A piece of a file: `data` are its bytes from `offset` on."""

    file: ArtifactFile
    offset: int
    data: bytes


def pack(pieces: list[Piece]) -> bytes:
    """Write pieces one after another, each after a line of JSON."""
    parts: list[bytes] = []
    for piece in pieces:
        head = piece.file._asdict() | {"offset": piece.offset, "length": len(piece.data)}
        parts += [json.dumps(head).encode(), b"\n", piece.data]
    return b"".join(parts)


class _Form(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


_Path = Annotated[str, Field(max_length=30_000)]
_Size = Annotated[int, Field(ge=0, le=2**62)]
_Time = Annotated[int, Field(ge=-(2**43), le=2**43)]  # as nanoseconds, what a file system takes
_Mode = Annotated[int, Field(ge=0, le=0o7777)]


class _File(_Form):
    path: _Path
    size: _Size
    mtime_ms: _Time
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")] | None
    mode: _Mode = 0o644

    def of(self) -> ArtifactFile:
        return ArtifactFile(self.path, self.size, self.mtime_ms, self.sha256, self.mode)


class _Piece(_File):
    offset: _Size
    length: _Size


class _Skipped(_Form):
    path: _Path
    why: str


class _Header(BaseModel):
    state: ArtifactsState
    skipped: list[_Skipped]
    folders: list[tuple[_Path, _Time, _Mode]] = []


def unpack(body: bytes) -> Iterator[Piece]:
    at = 0
    while at < len(body):
        end = body.find(b"\n", at)
        try:
            head = _Piece.model_validate_json(body[at : end if end >= 0 else len(body)])
        except ValidationError as error:
            raise SpecInvalid(f"A piece of a file is malformed: {_describe(error)}.") from error
        at = end + 1 + head.length
        if end < 0 or at > len(body) or head.offset + head.length > head.size:
            raise SpecInvalid(f"A piece of {head.path[:200]!r} does not fit its file or the request.")
        yield Piece(head.of(), head.offset, body[end + 1 : at])


def parse_list(data: bytes) -> tuple[Manifest, list[ArtifactFile]]:
    """Parse a list of artifacts that a worker has sent."""
    first, *rest = data.splitlines() or [b""]
    try:
        header = _Header.model_validate_json(first)
        files = [_File.model_validate_json(line).of() for line in rest]
    except ValidationError as error:
        raise SpecInvalid(f"The list of artifacts is malformed: {_describe(error)}.") from error
    for folder in header.folders:
        parse_public_path(folder[0])
    return Manifest(
        header.state,
        len(files),
        sum(file.size for file in files),
        tuple(Skipped(skipped.path, skipped.why) for skipped in header.skipped),
        tuple(ArtifactFolder(*folder) for folder in header.folders),
    ), files


def _describe(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_input=False)[0]
    return f"{'.'.join(str(part) for part in first['loc'])[:200] or 'it'}: {first['msg']}"


class ReceivedArtifacts:
    """Artifacts of one attempt on their way in. `directory`: the attempt's folder in a `DirectoryStore`."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._parts = directory / f"{INCOMING}.parts"

    def sign(self, paths: Sequence[str]) -> None:
        """Return None: files come in pieces, through the service."""

    def add(self, body: bytes) -> None:
        """Store pieces; one that does not continue what has arrived is left out, and missing in the next answer."""
        with self._locked() as root:
            if (self._directory / MANIFEST).exists():
                return
            for piece in unpack(body):
                self._add(root, piece)

    def take_list(self, data: bytes, *, final: bool) -> dict[str, int]:
        """Take the list of files, and publish it as far as they have arrived; delete files that it does not name.

        Returns the files that are missing: by path, the bytes of each that have arrived.

        Args:
            data: A list as `write_manifest` writes it.
            final: It is the manifest, which is written once all of its files are here with their sha256.
        """
        with self._locked() as root:
            if (self._directory / MANIFEST).exists():
                return {}
            header, files = parse_list(data)
            received = {file.path: file for file in self._received()}
            missing = [file for file in files if not _has_arrived(file, received.get(file.path), final=final)]
            self._drop(root, received, {file.path for file in files})
            if final and not missing:
                flush_disk(root)
                with suppress(FileExistsError):
                    write_manifest(self._directory / MANIFEST, header, files, durable=True, replace=False)
                (self._directory / LISTING).unlink(missing_ok=True)
                (self._directory / _RECEIVED).unlink(missing_ok=True)
                with suppress(OSError):
                    remove_tree(self._parts)
            elif not final:
                absent = {file.path for file in missing}
                here = [file for file in files if file.path not in absent]
                header = replace(header, files=len(here), bytes=sum(file.size for file in here))
                write_manifest(self._directory / LISTING, header, here, durable=False)
            arrived = {file.path: self._arrived_bytes(file) for file in missing}
            self._drop_parts({self._part(file) for file in missing})
            return arrived

    def _add(self, root: int, piece: Piece) -> None:
        *parents, name = parse_public_path(piece.file.path)
        part = self._part(piece.file)
        descriptor = os.open(part, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            arrived = os.fstat(descriptor).st_size
            if piece.offset > arrived:
                return
            os.ftruncate(descriptor, piece.offset)
            os.lseek(descriptor, piece.offset, os.SEEK_SET)
            write_all(descriptor, piece.data)
            if piece.offset + len(piece.data) < piece.file.size:
                return
            sha256 = _hash(descriptor) if piece.offset else hashlib.sha256(piece.data).hexdigest()
        finally:
            os.close(descriptor)
        if piece.file.sha256 not in {None, sha256}:  # sent anew
            part.unlink()
            return
        part.chmod(piece.file.mode & _PERMISSIONS | stat.S_IRUSR)
        os.utime(part, ns=(piece.file.mtime_ms * 1_000_000,) * 2)
        try:
            with opened_beneath(root, parents, create=True) as folder:
                os.rename(part, name, dst_dir_fd=folder)
        except (IsADirectoryError, NotADirectoryError, ArtifactNotFound) as error:
            raise SpecInvalid(f"{piece.file.path[:200]!r} is a file and a folder at once.") from error
        with (self._directory / _RECEIVED).open("ab") as record:
            record.write(json.dumps(piece.file._replace(sha256=sha256)._asdict()).encode() + b"\n")

    def _received(self) -> Iterator[ArtifactFile]:
        with suppress(FileNotFoundError):
            for line in (self._directory / _RECEIVED).read_bytes().splitlines():
                with suppress(ValueError, TypeError):  # a line that a crash cut off
                    yield ArtifactFile(**json.loads(line))

    def _drop(self, root: int, received: dict[str, ArtifactFile], wanted: set[str]) -> None:
        """Delete files that are not wanted any more, and folders that are empty then."""
        gone = [path for path in received if path not in wanted]
        if not gone:
            return
        kept = [json.dumps(file._asdict()).encode() + b"\n" for path, file in received.items() if path in wanted]
        write_atomically(self._directory / _RECEIVED, kept, durable=False)
        for path in gone:
            *parents, name = parse_public_path(path)
            with suppress(FileNotFoundError), opened_beneath(root, parents) as folder:
                os.unlink(name, dir_fd=folder)
            for depth in range(len(parents), 0, -1):
                with suppress(OSError), opened_beneath(root, parents[: depth - 1]) as folder:
                    os.rmdir(parents[depth - 1], dir_fd=folder)

    def _drop_parts(self, wanted: set[Path]) -> None:
        """Delete what has arrived of files that have changed or are gone."""
        with suppress(FileNotFoundError):
            for part in self._parts.iterdir():
                if part not in wanted:
                    part.unlink(missing_ok=True)

    def _part(self, file: ArtifactFile) -> Path:
        # Without the sha256: what arrived before it was known counts.
        return self._parts / hashlib.sha256(f"{file.size} {file.mtime_ms} {file.path}".encode()).hexdigest()

    def _arrived_bytes(self, file: ArtifactFile) -> int:
        with suppress(FileNotFoundError):
            return self._part(file).stat().st_size
        return 0

    @contextmanager
    def _locked(self) -> Iterator[int]:
        """Open the folder of the files; one request at a time, of all processes, while it is open."""
        self._parts.mkdir(parents=True, exist_ok=True, mode=0o700)
        (self._directory / "files").mkdir(exist_ok=True, mode=0o700)
        with opened_folder(self._directory / "files") as root:
            fcntl.flock(root, fcntl.LOCK_EX)
            yield root


def _has_arrived(file: ArtifactFile, received: ArtifactFile | None, *, final: bool) -> bool:
    if received is None or file.size != received.size:
        return False
    return file.sha256 == received.sha256 if final else file.mtime_ms == received.mtime_ms


def _hash(descriptor: int) -> str:
    os.lseek(descriptor, 0, os.SEEK_SET)
    with os.fdopen(descriptor, "rb", closefd=False) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
