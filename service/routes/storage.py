from contextlib import closing
from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import Query, Request, Response
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException

from core.errors import StorageFull
from core.jobs import projects, queries
from core.storage.shared.project_files import ProjectFiles, StoredEntry, Upload
from core.system.filesystem import describe_shortage
from service.app_state import AppState
from service.auth.authentication import Caller, SearchSlot
from service.deps import AppStateDep, ReadSession
from service.http.body_limit import allow_upload
from service.http.path_convertor import FILE, FilePath
from service.http.responses import file_responses
from service.http.routing import api_router
from service.presenters.outputs.artifacts import file_response
from service.schemas.base import ErrorView
from service.schemas.storage import StoredEntries, StoredEntryView, StoreFile

router = api_router(prefix="/projects/{project_id}/storage", tags=["storage"], reads_in=lambda lanes: lanes.files)

_FLUSH_BYTES = 1024**2
_CLOSED: dict[int | str, dict[str, Any]] = {
    501: {"model": ErrorView, "description": "The service's user may not use this part of the storage."}
}
_READ_RESPONSES = {
    **file_responses.RESPONSES,
    304: {"description": "Not modified: the client has this version."},
    **_CLOSED,
}
_PUT_RESPONSES: dict[int | str, dict[str, Any]] = {
    411: {"model": ErrorView, "description": "The request has no Content-Length."},
    507: {"model": ErrorView, "description": "The disk or the project's quota is full."},
    **_CLOSED,
}
_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
    }
}


@router.get("", responses=_CLOSED, dependencies=[SearchSlot])
def list_storage(
    session: ReadSession,
    app_state: AppStateDep,
    project_id: str,
    path: Annotated[str, Query(description="folder or file; default: the whole storage")] = "",
    recursive: Annotated[bool, Query(description="include the contents of its folders")] = False,  # noqa: FBT002 - a query parameter
    limit: Annotated[int, Query(ge=1, le=10_000)] = 1000,
    after: Annotated[str | None, Query(description="`next` of the previous page")] = None,
) -> StoredEntries:
    """List a folder in the project's storage. `datasets` has the data sets of all projects, and is listed by itself."""
    files = ProjectFiles(app_state.storage, queries.project(session, project_id).id)
    page = files.page(path, recursive=recursive, after=after, limit=limit)
    return StoredEntries(entries=[_entry_view(entry) for entry in page.entries], next=page.next)


@router.get(
    f"/{{path:{FILE}}}",
    response_class=Response,
    responses=_READ_RESPONSES,
    openapi_extra=file_responses.declare_request_headers("Range", "If-Range", "If-None-Match"),
)
def read_stored_file(
    request: Request, session: ReadSession, app_state: AppStateDep, project_id: str, path: FilePath
) -> Response:
    """Read a file in the project's storage, or a range of it."""
    opened = ProjectFiles(app_state.storage, queries.project(session, project_id).id).open(path)
    return file_response(request, opened, path)


@router.put(f"/{{path:{FILE}}}", responses=_PUT_RESPONSES, openapi_extra=_BODY)
async def store_file(
    request: Request,
    app_state: AppStateDep,
    caller: Caller,
    project_id: str,
    path: FilePath,
    wanted: Annotated[StoreFile, Query()],
) -> StoredEntryView:
    """Store a file, replacing one at this path. Jobs see it once it is complete."""
    length = request.headers.get("content-length", "")
    if not length.isdecimal():
        raise HTTPException(411, "Send the size of the file as Content-Length.")
    size, largest = int(length), app_state.settings.api.max_upload_bytes
    if size > largest:
        raise HTTPException(413, f"The file is larger than {largest:,} bytes (GRADIENT_API__MAX_UPLOAD_BYTES).")
    allow_upload(request, app_state.settings.api)
    async with app_state.limits.uploads.slot(caller.id):
        upload = await app_state.lanes.changing.run(_begin, app_state, project_id, path, size)
        with closing(upload):
            await _receive(request, upload, size)
            mtime_ms = None if wanted.modified is None else round(wanted.modified.timestamp() * 1000)
            entry = await app_state.lanes.uploads.run(
                upload.commit, sha256=wanted.sha256, mtime_ms=mtime_ms, executable=wanted.executable
            )
    app_state.storage_usage.add(project_id, size)
    return _entry_view(entry)


@router.delete(f"/{{path:{FILE}}}", status_code=204, responses=_CLOSED)
def delete_stored_file(
    session: ReadSession,
    app_state: AppStateDep,
    _caller: Caller,
    project_id: str,
    path: FilePath,
    recursive: Annotated[bool, Query(description="delete a folder with its contents")] = False,  # noqa: FBT002 - a query parameter
) -> None:
    """Delete a file or an empty folder in the project's storage; with `recursive` any folder."""
    ProjectFiles(app_state.storage, queries.project(session, project_id).id).remove(path, recursive=recursive)
    app_state.storage_usage.forget(project_id)


def _begin(app_state: AppState, project_id: str, path: str, size: int) -> Upload:
    disk = app_state.settings.disk
    short = describe_shortage([app_state.storage.incoming], disk.min_free_mb, coming=size)
    if short is not None:
        raise StorageFull(
            f"The disk has no room for a file of {size:,} bytes: {short} (GRADIENT_DISK__MIN_FREE_MB). Send it again "
            "once an administrator has freed space.",
            field="path",
        )
    with app_state.database.read() as session:
        project = queries.project(session, project_id)
        projects.check_upload(
            session,
            project,
            disk.project_mb,
            coming=size,
            measure_storage=lambda: app_state.storage_usage.measure(project_id),
        )
    return ProjectFiles(app_state.storage, project_id).receive(path)


async def _receive(request: Request, upload: Upload, size: int) -> None:
    """Write the body to the upload, a megabyte at a time."""
    pending = bytearray()
    async for chunk in request.stream():
        pending += chunk
        if len(pending) >= _FLUSH_BYTES:
            await run_in_threadpool(upload.write, bytes(pending))
            pending.clear()
    await run_in_threadpool(upload.write, bytes(pending))
    if upload.size != size:
        raise HTTPException(400, f"The upload ended after {upload.size:,} of {size:,} bytes. Send it again.")


def _entry_view(entry: StoredEntry) -> StoredEntryView:
    return StoredEntryView.of(
        entry,
        modified=datetime.fromtimestamp(entry.mtime_ms / 1000, UTC),
        etag=None if entry.size is None else f"{entry.size:x}-{entry.mtime_ms:x}",
    )
