"""Files that a browser uploads with the form of a new job, as a workspace archive."""

import shutil
import tempfile
import zipfile
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Annotated, BinaryIO

from fastapi import Depends, Request
from starlette.datastructures import FormData, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect

from core.errors import WorkspaceInvalid
from core.formatting import MIB
from service.auth.authentication import PageCaller
from service.deps import AppStateDep
from service.http.body_limit import allow_upload

MAX_FILES = 1000
MAX_UPLOAD_BYTES = 256 * MIB
"""Largest upload of the form; the command line sends larger folders, and each file's content only once."""
LEFT_OUT = (".git", "__pycache__", ".venv", "venv", "node_modules", ".ipynb_checkpoints", ".env", ".ssh", ".aws")
"""Names of files and folders that are not taken from an uploaded folder."""

_MAX_FIELDS = 200
_ARCHIVES = (".zip", ".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")


@dataclass(slots=True)
class JobForm:
    """The form as it was sent.

    Attributes:
        texts: The text fields, with line ends as LF.
        secrets: Names of the chosen secrets.
        files: The chosen files, with the paths that the browser gives them.
        error: Reason for which files were not read, if so.
    """

    texts: dict[str, str]
    secrets: list[str]
    files: list[UploadFile]
    error: str | None = None


async def _read_form(request: Request, app_state: AppStateDep, _caller: PageCaller) -> AsyncIterator[JobForm]:
    # Not parameters with FastAPI's `Form`: the form would be read before authentication.
    allow_upload(request, app_state.settings.api.model_copy(update={"max_upload_bytes": MAX_UPLOAD_BYTES}))
    error = None
    if not request.headers.get("content-type", "").startswith("multipart/form-data"):
        form = await request.form(max_files=0, max_fields=_MAX_FIELDS)
    else:
        parser = MultiPartParser(request.headers, request.stream(), max_files=MAX_FILES, max_fields=_MAX_FIELDS)
        try:
            form = await parser.parse()
        except ClientDisconnect as gone:
            raise WorkspaceInvalid("The upload ended early. Send it again.", field="files") from gone
        except MultiPartException as problem:
            # The files are the last fields of the form, so everything that was typed has been read.
            error = f"{problem.message} Pack more files into an archive."
            form = FormData([(name, value) for name, value in parser.items if isinstance(value, str)])
    try:
        yield JobForm(
            # Browsers send the line ends of a text area as CR LF.
            {name: value.replace("\r\n", "\n") for name, value in form.items() if isinstance(value, str)},
            [name for name in form.getlist("secret") if isinstance(name, str)],
            [one for one in form.getlist("files") if isinstance(one, UploadFile) and one.filename],
            error,
        )
    finally:
        await form.close()


JobFormDep = Annotated[JobForm, Depends(_read_form, scope="function")]


def pack(files: list[UploadFile]) -> BinaryIO:
    """Return the archive among the files if there is only that, else an archive of all files; the caller closes it.

    Raises:
        WorkspaceInvalid: Nothing is left, or two files have the same path.
    """
    if len(files) == 1 and (files[0].filename or "").lower().endswith(_ARCHIVES):
        return files[0].file
    chosen = [(path, one) for path, one in zip(_relative_paths(files), files, strict=True) if path is not None]
    twice = next((path for path, count in Counter(path for path, _ in chosen).items() if count > 1), None)
    if twice is not None:
        raise WorkspaceInvalid(f"Two files are called {twice[:200]!r}. Choose their folder.", field="files")
    if not chosen:
        raise WorkspaceInvalid("No file is left of this folder. Choose another one.", field="files")
    packed = tempfile.TemporaryFile()  # noqa: SIM115 - the caller closes it
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
