"""Forms with files, read by Starlette's parser: the files are on the service's own disk, and take no memory."""

import io
import os
import tempfile
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import FormData
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect, Request

from core.errors import StorageFull, StoreUnavailable, WorkspaceInvalid
from core.settings import Settings
from core.system.filesystem import describe_shortage
from service.http.errors import problem


@dataclass(frozen=True, slots=True)
class FormLimits:
    file: str  # the part with files, for errors about them
    files: int
    file_bytes: int  # largest size of each file
    fields: int
    text_bytes: int  # largest size of all parts that are no files, together
    parts: Collection[str] | None = None  # the parts that it may have, once each; None: any
    copies: int = 1  # of its files, for which the disk needs room


class TooLarge(MultiPartException):
    """A file or the texts of a form are larger than its limits."""


def upload_folder(settings: Settings) -> Path:
    return settings.root / "workspaces"


@asynccontextmanager
async def form_parser(request: Request, settings: Settings, limits: FormLimits) -> AsyncIterator["FormParser"]:
    """Yield a parser of a request's form, whose files are there until the end of the `with`."""
    folder = upload_folder(settings)
    length = request.headers.get("content-length", "")
    coming = limits.copies * int(length) if length.isdecimal() else 0

    def prepare() -> tuple[BinaryIO, str | None]:
        folder.mkdir(parents=True, exist_ok=True)
        shared = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115 - closed below
        return cast(BinaryIO, shared), describe_shortage([folder], settings.disk.min_free_mb, coming=coming)

    try:
        shared, shortage = await run_in_threadpool(prepare)
    except OSError as error:
        raise _not_received(error) from error
    with shared:
        yield FormParser(request, limits, _Disk(shared, folder, settings.disk.min_free_mb, limits.file), shortage)


def _not_received(error: OSError) -> StoreUnavailable:
    return StoreUnavailable(f"The upload could not be received: {error.strerror}. Try again later.")


class FormParser(MultiPartParser):
    """Starlette's parser, which stores all files of a form in one unnamed file of the service's own folder.

    Raises `MultiPartException` and `StorageFull`; what was read until then is in `items`.
    """

    def __init__(self, request: Request, limits: FormLimits, disk: "_Disk", shortage: str | None) -> None:
        super().__init__(
            request.headers,
            request.stream(),
            max_files=limits.files,
            max_fields=limits.fields,
            max_part_size=limits.text_bytes,
        )
        self._limits = limits
        self._disk = disk
        self._shortage = shortage
        self._text_bytes, self._file_bytes = limits.text_bytes, 0  # that are left
        self._ended = False
        self.texts: dict[str, bytes] = {}  # as they were sent

    def on_headers_finished(self) -> None:
        """Begin a part; called by the library."""
        super().on_headers_finished()
        self._file_bytes = self._limits.file_bytes
        name, upload, parts = self._current_part.field_name, self._current_part.file, self._limits.parts
        if parts is not None and name not in parts:
            raise problem(("body", name), f"not a part of this form; it has {' and '.join(map(repr, parts))}")
        if parts is not None and any(name == earlier for earlier, _ in self.items):
            raise problem(("body", name), "sent twice; send it once")
        if upload is None:
            return
        if upload.filename and self._shortage is not None:
            raise self._disk.full(self._shortage)
        upload.file.close()  # the library's own temporary file, still empty
        upload.file = cast(BinaryIO, _FormFile(self._disk))

    def on_part_data(self, data: bytes, start: int, end: int) -> None:
        """Add to a part; called by the library."""
        if self._current_part.file is None:
            self._text_bytes -= end - start
            if self._text_bytes < 0:
                raise TooLarge("The values in the form are too long. Put long ones into a file.")
        else:
            self._file_bytes -= end - start
            if self._file_bytes < 0:
                name = self._current_part.field_name
                raise TooLarge(f"The part {name!r} is larger than {self._limits.file_bytes:,} bytes, the limit here.")
        super().on_part_data(data, start, end)

    def on_part_end(self) -> None:
        """Complete a part; called by the library."""
        if self._current_part.file is None:
            self.texts[self._current_part.field_name] = bytes(self._current_part.data)
        super().on_part_end()

    def on_end(self) -> None:
        """Note that the form is complete; called by the library."""
        self._ended = True

    async def parse(self) -> FormData:
        try:
            form = await super().parse()
        except ClientDisconnect as error:
            raise WorkspaceInvalid("The upload ended early. Send it again.", field=self._limits.file) from error
        except OSError as error:
            raise _not_received(error) from error
        if not self._ended:
            raise MultiPartException("The upload is cut off: the end of the form is missing.")
        return form


@dataclass(frozen=True, slots=True)
class _Disk:
    """The place of a form's files, and the room that has to be left there."""

    shared: BinaryIO
    folder: Path
    min_free_mb: int
    field: str

    def full(self, shortage: str) -> StorageFull:
        return StorageFull(
            f"The disk has no room for this upload: {shortage} (GRADIENT_DISK__MIN_FREE_MB). Send it again once an "
            "administrator has freed space, or submit a job without an upload.",
            field=self.field,
        )


class _FormFile(io.RawIOBase):
    """A file of a form: a section of the file of all. Files are written one after the other."""

    def __init__(self, disk: _Disk) -> None:
        super().__init__()
        self._disk = disk
        self._shared = disk.shared
        self._start = self._size = self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def write(self, data: Any) -> int:  # noqa: ANN401 - any buffer
        shortage = describe_shortage([self._disk.folder], self._disk.min_free_mb, coming=len(data))
        if shortage is not None:
            raise self._disk.full(shortage)
        end = self._shared.seek(0, os.SEEK_END)
        if not self._size:
            self._start = end
        left = memoryview(data)
        while left:
            left = left[self._shared.write(left) :]
        self._size += len(data)
        return len(data)

    def readinto(self, buffer: Any) -> int:  # noqa: ANN401 - any buffer
        self._shared.seek(self._start + self._at)
        chunk = self._shared.read(max(0, min(len(buffer), self._size - self._at)))
        buffer[: len(chunk)] = chunk
        self._at += len(chunk)
        return len(chunk)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        return self._at

    def tell(self) -> int:
        return self._at
