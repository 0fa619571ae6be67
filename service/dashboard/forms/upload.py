import shutil
import tempfile
import zipfile
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Annotated, BinaryIO

from fastapi import Depends, Request
from starlette.datastructures import FormData, UploadFile
from starlette.formparsers import MultiPartException

from core.errors import StorageFull, WorkspaceInvalid
from core.formatting import MIB
from service.auth.authentication import PageCaller
from service.deps import AppStateDep
from service.http.body_limit import MAX_JSON_BYTES, allow_json, allow_upload
from service.http.upload_form import FormLimits, FormParser, form_parser
from service.schemas.base import check_texts

MAX_FILES = 1000
MAX_UPLOAD_BYTES = 256 * MIB
"""Largest upload of the form; the command line sends larger folders, and each file's content only once."""
LEFT_OUT = (".git", "__pycache__", ".venv", "venv", "node_modules", ".ipynb_checkpoints", ".env", ".ssh", ".aws")
"""Names of files and folders that are not taken from an uploaded folder."""

_MAX_FIELDS = 200
# Twice on the disk: the files, and the archive of them.
_LIMITS = FormLimits("files", MAX_FILES, MAX_UPLOAD_BYTES, _MAX_FIELDS, MAX_JSON_BYTES, copies=2)
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
    async with app_state.limits.uploads.slot(caller.id), form_parser(request, app_state.settings, _LIMITS) as parser:
        yield await _parse(parser)


async def _parse(parser: FormParser) -> JobForm:
    try:
        return _job_form(await parser.parse())
    except (MultiPartException, StorageFull) as problem:
        # The files are the last fields of the form, so everything that was typed has been read.
        return _job_form(FormData([item for item in parser.items if isinstance(item[1], str)]), problem.message)


def _job_form(form: FormData, error: str | None = None) -> JobForm:
    if error is not None and error.startswith("Too many files"):
        error += " Pack more files into an archive."
    check_texts({name: value for name, value in form.multi_items() if isinstance(value, str)})
    # Browsers send the line ends of a text area as CR LF.
    texts = {name: value.replace("\r\n", "\n") for name, value in form.items() if isinstance(value, str)}
    if texts.get("kind") == "comparison":
        texts["machineType"] = ",".join(map(str, form.getlist("machineTypes")))
    return JobForm(
        texts,
        [name for name in form.getlist("secret") if isinstance(name, str)],
        [file for file in form.getlist("files") if isinstance(file, UploadFile) and file.filename],
        error,
    )


JobFormDep = Annotated[JobForm, Depends(_read_form, scope="function")]


def pack(files: list[UploadFile], folder: Path) -> BinaryIO:
    """Return the archive among the files if there is only that, else an archive of all files; the caller closes it."""
    if len(files) == 1 and (files[0].filename or "").lower().endswith(_ARCHIVES):
        return files[0].file
    chosen = [(path, file) for path, file in zip(_relative_paths(files), files, strict=True) if path is not None]
    twice = next((path for path, count in Counter(path for path, _ in chosen).items() if count > 1), None)
    if twice is not None:
        raise WorkspaceInvalid(f"Two files have the name {twice[:200]!r}. Choose their folder instead.", field="files")
    if not chosen:
        raise WorkspaceInvalid("This folder has no files to upload. Choose another one.", field="files")
    packed = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 - the caller closes it
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, file in chosen:
            with archive.open(path, "w") as entry:
                shutil.copyfileobj(file.file, entry)
    packed.seek(0)
    return packed


def _relative_paths(files: list[UploadFile]) -> list[str | None]:
    """Return the paths of the files below the chosen folder; None: the file is left out."""
    paths: list[str | None] = []
    for file in files:
        parts = PurePosixPath((file.filename or "").replace("\\", "/")).parts
        inside = parts[1:] if len(parts) > 1 else parts
        paths.append(None if set(inside) & set(LEFT_OUT) else "/".join(inside))
    return paths
