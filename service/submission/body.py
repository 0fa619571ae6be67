"""Reading of a submission's body: a JSON spec, alone or in a form with a workspace archive.

The archive is in an unnamed temporary file on the service's own disk: it is not kept in memory, and nothing is left if
the client disconnects or this process ends.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import BinaryIO, TypeVar

from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartException
from starlette.requests import Request

from core.errors import WorkspaceInvalid
from service.app_state import AppState
from service.http.body_limit import MAX_JSON_BYTES, allow_upload
from service.http.errors import problem
from service.http.json_body import run_with_json
from service.http.upload_form import FormLimits, FormParser, TooLarge, form_parser

SPEC = "spec"
WORKSPACE = "workspace"

T = TypeVar("T")


@dataclass(slots=True)
class SubmissionBody:
    spec: bytes
    workspace: BinaryIO | None = None  # an open file at its start


@asynccontextmanager
async def received(
    request: Request,
    app_state: AppState,
    *,
    part: str = WORKSPACE,
    spec: tuple[str, int] | None = (SPEC, MAX_JSON_BYTES),
) -> AsyncIterator[SubmissionBody]:
    """Receive the whole body of a request whose key and limit are checked; its file is closed at the end.

    Args:
        part: The part of the form with the file.
        spec: Name and largest size of the part with the JSON text, which may also come alone; None: there is none.
    """
    allow_upload(request, app_state.settings.api, json_bytes=None if spec is None else spec[1])
    name, text_bytes = spec or (None, 0)
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if name is not None and kind == "application/json":
        yield SubmissionBody(await read_json(request.stream(), text_bytes))
        return
    if kind != "multipart/form-data":
        named = f"`{part}`" if name is None else f"`{name}` and `{part}`, or application/json"
        raise HTTPException(415, f"Send multipart/form-data with {named}.")
    parts = [part] if name is None else [name, part]
    limits = FormLimits(
        part,
        files=len(parts),
        file_bytes=app_state.settings.api.max_upload_bytes,
        fields=len(parts),
        text_bytes=text_bytes,
        parts=parts,
    )
    async with form_parser(request, app_state.settings, limits) as parser:
        yield await _read_form(parser, part, spec)


async def _read_form(parser: FormParser, part: str, spec: tuple[str, int] | None) -> SubmissionBody:
    try:
        form = await parser.parse()
    except TooLarge as error:
        raise HTTPException(413, error.message) from error
    except MultiPartException as error:
        raise WorkspaceInvalid(f"{error.message} Nothing was stored; send the form again.", field=part) from error
    upload = form.get(part)
    if isinstance(upload, str):
        raise problem(("body", part), "a file; send it with a `filename` in its Content-Disposition")
    workspace = None if upload is None else upload.file
    if spec is None:
        return SubmissionBody(b"", workspace)
    name, text_bytes = spec
    text = form.get(name)
    if text is None:
        raise problem(("body", name), "required: the part with the JSON is missing")
    if isinstance(text, str):
        return SubmissionBody(parser.texts[name], workspace)
    if (text.size or 0) > text_bytes:
        raise HTTPException(413, f"The part {name!r} is larger than {text_bytes:,} bytes.")
    return SubmissionBody(await text.read(), workspace)


async def run_submission(app_state: AppState, key: str, body: SubmissionBody, submit: Callable[[], T]) -> T:
    """Run `submit` in a thread and return its result.

    Checking an archive may take minutes, so this has its own threads and slots: archives block neither other requests
    nor, by the slots, the archives of other keys.
    """
    if body.workspace is None:
        return await run_with_json(app_state, key, body.spec, submit, app_state.lanes.submissions)
    return await run_with_upload_slot(app_state, key, submit)


async def run_with_upload_slot(app_state: AppState, key: str, action: Callable[[], T]) -> T:
    async with app_state.limits.uploads.slot(key):
        return await app_state.lanes.archives.run(action)


async def read_json(stream: AsyncIterator[bytes], limit: int) -> bytes:
    body = bytearray()
    async for chunk in stream:
        body += chunk
        if len(body) > limit:
            raise HTTPException(413, f"The JSON body is larger than {limit:,} bytes, the limit here.")
    return bytes(body)
