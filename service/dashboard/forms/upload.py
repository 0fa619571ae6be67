import io
import os
import shutil
import tempfile
import zipfile
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, BinaryIO, cast

from fastapi import Depends, Request
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import FormData, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect

from core.errors import StoreUnavailable, WorkspaceInvalid
from core.formatting import MIB
from core.system.filesystem import describe_shortage
from service.app_state import AppState
from service.auth.authentication import PageCaller
from service.deps import AppStateDep
from service.http.body_limit import MAX_JSON_BYTES, allow_json, allow_upload
from service.schemas.base import check_texts

MAX_FILES = 1000
MAX_UPLOAD_BYTES = 256 * MIB
"""Largest upload of the form; the command line sends larger folders, and each file's content only once."""
LEFT_OUT = (".git", "__pycache__", ".venv", "venv", "node_modules", ".ipynb_checkpoints", ".env", ".ssh", ".aws")
"""Names of files and folders that are not taken from an uploaded folder."""

_MAX_FIELDS = 200
_ARCHIVES = (".zip", ".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")


@dataclass(slots=True)
class JobForm:
    texts: dict[str, str]
    secrets: list[str]
    files: list[UploadFile]  # the chosen files, with the paths that the browser gives them
    error: str | None = None  # reason for which files were not read, if so


async def _read_form(request: Request, app_state: AppStateDep, caller: PageCaller) -> AsyncIterator[JobForm]:
    # Not parameters with FastAPI's `Form`: the form would be read before authentication.
    api = app_state.settings.api
    if not request.headers.get("content-type", "").startswith("multipart/form-data"):
        allow_json(request)
        yield _job_form(await request.form(max_files=0, max_fields=_MAX_FIELDS))
        return
    allow_upload(request, api.model_copy(update={"max_upload_bytes": MAX_UPLOAD_BYTES}))
    # Until the files are stored: what a key uploads at once has to fit on the disk.
    async with app_state.limits.uploads.slot(caller.id):
        try:
            shared, shortage = await run_in_threadpool(_prepare, app_state, request.headers.get("content-length", ""))
        except OSError as error:
            raise _not_received(error) from error
        with shared:
            yield await _parse(_FormParser(request, shared, shortage, MAX_JSON_BYTES))


def upload_folder(app_state: AppState) -> Path:
    return app_state.settings.root / "workspaces"


def _prepare(app_state: AppState, length: str) -> tuple[BinaryIO, str | None]:
    """Return a temporary file for the files of a form, and the reason for which there is no room for them, if so."""
    folder = upload_folder(app_state)
    folder.mkdir(parents=True, exist_ok=True)
    # Twice: the files, and the archive of them.
    coming = 2 * (int(length) if length.isdecimal() else MAX_UPLOAD_BYTES)
    shortage = describe_shortage([folder], app_state.settings.disk.min_free_mb, coming=coming)
    return cast(BinaryIO, tempfile.TemporaryFile(dir=folder, buffering=0)), shortage


async def _parse(parser: "_FormParser") -> JobForm:
    try:
        return _job_form(await parser.parse())
    except ClientDisconnect as gone:
        raise WorkspaceInvalid("The upload ended early. Send it again.", field="files") from gone
    except OSError as error:
        raise _not_received(error) from error
    except MultiPartException as problem:
        # The files are the last fields of the form, so everything that was typed has been read.
        return _job_form(FormData([one for one in parser.items if isinstance(one[1], str)]), problem.message)


def _not_received(error: OSError) -> StoreUnavailable:
    return StoreUnavailable(f"The upload could not be received: {error.strerror}. Try again later.")


def _job_form(form: FormData, error: str | None = None) -> JobForm:
    if error is not None and error.startswith("Too many files"):
        error += " Pack more files into an archive."
    check_texts({name: value for name, value in form.multi_items() if isinstance(value, str)})
    return JobForm(
        # Browsers send the line ends of a text area as CR LF.
        {name: value.replace("\r\n", "\n") for name, value in form.items() if isinstance(value, str)},
        [name for name in form.getlist("secret") if isinstance(name, str)],
        [one for one in form.getlist("files") if isinstance(one, UploadFile) and one.filename],
        error,
    )


class _FormParser(MultiPartParser):
    """A parser that stores all files of a form in one temporary file, so that they take no memory."""

    def __init__(self, request: Request, shared: BinaryIO, shortage: str | None, max_text_bytes: int) -> None:
        super().__init__(request.headers, request.stream(), max_files=MAX_FILES, max_fields=_MAX_FIELDS)
        self._shared = shared
        self._shortage = shortage
        self._text_bytes = max_text_bytes

    def on_headers_finished(self) -> None:
        """Begin a field; called by the library."""
        super().on_headers_finished()
        upload = self._current_part.file
        if upload is None:
            return
        if upload.filename and self._shortage is not None:
            raise MultiPartException(
                f"The disk has no room for these files: {self._shortage} (GRADIENT_DISK__MIN_FREE_MB). Choose them "
                "again once an administrator has freed space."
            )
        upload.file.close()  # the library's own temporary file, still empty
        upload.file = cast(BinaryIO, _FormFile(self._shared))

    def on_part_data(self, data: bytes, start: int, end: int) -> None:
        """Add to a field; called by the library."""
        if self._current_part.file is None:
            self._text_bytes -= end - start
            if self._text_bytes < 0:
                raise MultiPartException("The texts of the form are too long. Put long ones into a file.")
        super().on_part_data(data, start, end)


class _FormFile(io.RawIOBase):
    """A file of a form: a section of the temporary file of all. Files are written one after the other."""

    def __init__(self, shared: BinaryIO) -> None:
        super().__init__()
        self._shared = shared
        self._start = self._size = self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def write(self, data: Any) -> int:  # noqa: ANN401 - any buffer
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
        found = self._shared.read(max(0, min(len(buffer), self._size - self._at)))
        buffer[: len(found)] = found
        self._at += len(found)
        return len(found)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        return self._at

    def tell(self) -> int:
        return self._at


JobFormDep = Annotated[JobForm, Depends(_read_form, scope="function")]


def pack(files: list[UploadFile], folder: Path) -> BinaryIO:
    """Return the archive among the files if there is only that, else an archive of all files; the caller closes it."""
    if len(files) == 1 and (files[0].filename or "").lower().endswith(_ARCHIVES):
        return files[0].file
    chosen = [(path, one) for path, one in zip(_relative_paths(files), files, strict=True) if path is not None]
    twice = next((path for path, count in Counter(path for path, _ in chosen).items() if count > 1), None)
    if twice is not None:
        raise WorkspaceInvalid(f"Two files are called {twice[:200]!r}. Choose their folder.", field="files")
    if not chosen:
        raise WorkspaceInvalid("No file is left of this folder. Choose another one.", field="files")
    packed = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 - the caller closes it
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, one in chosen:
            with archive.open(path, "w") as entry:
                shutil.copyfileobj(one.file, entry)
    packed.seek(0)
    return packed


def _relative_paths(files: list[UploadFile]) -> list[str | None]:
    """Return the paths of the files below the chosen folder; None: the file is left out."""
    found: list[str | None] = []
    for one in files:
        parts = PurePosixPath((one.filename or "").replace("\\", "/")).parts
        inside = parts[1:] if len(parts) > 1 else parts
        found.append(None if set(inside) & set(LEFT_OUT) else "/".join(inside))
    return found
