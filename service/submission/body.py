"""Reading of a submission's body: a JSON spec, alone or in a form with a workspace archive.

The archive is streamed into an unnamed temporary file on the service's own disk: it is not kept in memory, and nothing
is left if the client disconnects or this process ends.
"""

import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, TypeVar

import anyio.to_thread
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request

from core.errors import SpecInvalid, StorageFull, StoreUnavailable, WorkspaceInvalid
from core.system.filesystem import describe_shortage
from service.app_state import AppState
from service.http.body_limit import MAX_JSON_BYTES, allow_upload
from service.http.errors import problem
from service.http.json_body import run_with_json

SPEC = "spec"
WORKSPACE = "workspace"

_FLUSH_BYTES = 1024**2
_MULTIPART = b"multipart/form-data"
_JSON = b"application/json"

T = TypeVar("T")


@dataclass(slots=True)
class SubmissionBody:
    spec: bytes
    workspace: BinaryIO | None = None  # an open file at its start, or None; the body's owner closes it

    def close(self) -> None:
        if self.workspace is not None:
            self.workspace.close()


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
    try:
        body = await _read(request, app_state, part, spec)
    except OSError as error:
        raise StoreUnavailable(f"The upload could not be received: {error.strerror}. Try again later.") from error
    try:
        yield body
    finally:
        body.close()


async def _read(request: Request, app_state: AppState, part: str, spec: tuple[str, int] | None) -> SubmissionBody:
    kind, options = parse_options_header(request.headers.get("content-type", ""))
    if spec is not None and kind == _JSON:
        return SubmissionBody(await read_json(request.stream(), spec[1]))
    if spec is not None and kind != _MULTIPART:
        raise HTTPException(
            415, f"Send application/json, or multipart/form-data with the parts `{spec[0]}` and `{part}`."
        )
    boundary = options.get(b"boundary")
    if not boundary:
        raise problem(("body",), "multipart/form-data without a boundary in its Content-Type")
    settings = app_state.settings
    folder = settings.root / "workspaces"
    form = _MultipartReader(folder, part, settings.disk.min_free_mb, settings.api.max_upload_bytes, spec)
    length = request.headers.get("content-length", "")
    await anyio.to_thread.run_sync(form.require_room, int(length) if length.isdecimal() else 0)
    try:
        return await form.read(request.stream(), boundary)
    except BaseException:
        form.discard()
        raise


async def run_submission(app_state: AppState, key: str, body: SubmissionBody, submit: Callable[[], T]) -> T:
    """Run `submit` in a thread and return its result.

    Checking an archive may take minutes, so this has its own threads and slots: archives block neither other requests
    nor, by the slots, the archives of other keys.
    """
    if body.workspace is None:
        return await run_with_json(app_state, key, body.spec, submit)
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


@dataclass(slots=True)
class _Part:
    headers: dict[bytes, bytes] = field(default_factory=dict)
    name: str = ""
    size: int = 0


class _MultipartReader:
    """Collects the parts of a form as they arrive."""

    def __init__(
        self, folder: Path, file: str, min_free_mb: int, max_upload_bytes: int, spec: tuple[str, int] | None = None
    ) -> None:
        self._folder = folder
        self._min_free_mb = min_free_mb
        self._file = file
        self._text = None if spec is None else spec[0]
        self._limits = {} if spec is None else dict([spec])
        self._limits[file] = max_upload_bytes
        self._part = _Part()
        self._header = bytearray()
        self._value = bytearray()
        self._spec: bytearray | None = None
        self._workspace: BinaryIO | None = None
        self._pending = bytearray()
        self._ended = False

    def require_room(self, coming: int) -> None:
        """Check that the disk has room for `coming` bytes. Raises `StorageFull`: there is too little room."""
        short = describe_shortage([self._folder], self._min_free_mb, coming=coming)
        if short is not None:
            raise StorageFull(
                f"The disk has no room for an upload of {coming:,} bytes: {short} (GRADIENT_DISK__MIN_FREE_MB). Send "
                "it again once an administrator has freed space, or submit a job without an upload.",
                field=self._file,
            )

    async def read(self, stream: AsyncIterator[bytes], boundary: bytes) -> SubmissionBody:
        parser = self._create_parser(boundary)
        try:
            async for chunk in stream:
                parser.write(chunk)
                if len(self._pending) >= _FLUSH_BYTES:
                    await anyio.to_thread.run_sync(self._flush)
        except FormParserError as error:
            raise SpecInvalid("The multipart form is damaged; send it again.") from error
        except ClientDisconnect as error:
            raise WorkspaceInvalid("The upload ended early. Send it again.", field=self._file) from error
        if not self._ended:
            raise WorkspaceInvalid(
                "The upload is cut off: the end of the form is missing. Nothing was stored; send it again.",
                field=self._file,
            )
        if self._spec is None and self._text is not None:
            raise problem(("body", self._text), "required: the part with the JSON text is missing")
        await anyio.to_thread.run_sync(self._flush)
        if self._workspace is not None:
            self._workspace.seek(0)
        return SubmissionBody(bytes(self._spec or b""), self._workspace)

    def discard(self) -> None:
        """Close, and so delete, the file read so far."""
        if self._workspace is not None:
            self._workspace.close()

    def _create_parser(self, boundary: bytes) -> MultipartParser:
        return MultipartParser(
            boundary,
            {
                "on_part_begin": self._begin_part,
                "on_header_field": lambda data, start, end: self._header.extend(data[start:end]),
                "on_header_value": lambda data, start, end: self._value.extend(data[start:end]),
                "on_header_end": self._end_header,
                "on_headers_finished": self._open_part,
                "on_part_data": lambda data, start, end: self._add_data(data[start:end]),
                "on_end": self._end_form,
            },
        )

    def _begin_part(self) -> None:
        self._part = _Part()

    def _end_header(self) -> None:
        self._part.headers[bytes(self._header).lower()] = bytes(self._value)
        self._header.clear()
        self._value.clear()

    def _open_part(self) -> None:
        _, options = parse_options_header(self._part.headers.get(b"content-disposition"))
        name = options.get(b"name", b"").decode(errors="replace")
        if name not in self._limits:
            raise problem(("body", name), f"not a part of this form; it has {' and '.join(map(repr, self._limits))}")
        if (self._spec if name == self._text else self._workspace) is not None:
            raise problem(("body", name), "sent twice; send it once")
        self._part.name = name
        if name == self._text:
            self._spec = bytearray()
        else:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._workspace = tempfile.TemporaryFile(dir=self._folder, buffering=0)  # noqa: SIM115 - Body closes it

    def _add_data(self, data: bytes) -> None:
        part = self._part
        part.size += len(data)
        if part.size > self._limits[part.name]:
            raise HTTPException(413, f"The part {part.name!r} is larger than {self._limits[part.name]:,} bytes.")
        if part.name == self._text and self._spec is not None:
            self._spec += data
        else:
            self._pending += data

    def _flush(self) -> None:
        if self._workspace is not None and self._pending:
            self.require_room(len(self._pending))
            view = memoryview(self._pending)
            written = 0
            while written < len(view):
                written += self._workspace.write(view[written:])
            view.release()
            self._pending.clear()

    def _end_form(self) -> None:
        self._ended = True
