"""Stored workspaces, so that clients upload only what has changed."""

from collections.abc import AsyncIterator, Callable
from typing import Annotated, Any, TypeVar

from fastapi import Depends, Query, Request

from core.errors import StoreUnavailable, WorkspaceNotFound
from core.storage.workspaces import StoredWorkspace
from core.storage.workspaces.manifest import MAX_MANIFEST_BYTES, Manifest
from service.app_state import AppState
from service.auth.authentication import Caller, PageCaller
from service.deps import AppStateDep
from service.http.json_body import body_schema, json_body_schema
from service.http.routing import api_router
from service.schemas.base import ErrorView
from service.schemas.storage import MissingContents, WorkspaceView
from service.submission.body import SubmissionBody, received, run_with_upload_slot
from service.submission.workspace import may_use_workspace, workspace_limits

MANIFEST = "manifest"
CONTENTS = "contents"

router = api_router(prefix="/workspaces", tags=["workspaces"], reads_in=lambda lanes: lanes.files)

T = TypeVar("T")

_Base = Annotated[
    str | None,
    Query(
        description="sha256 of a stored earlier version: its contents do not have to be sent again. Contents of other "
        "workspaces do not count as stored"
    ),
]
_FORM_SCHEMA = {
    "type": "object",
    "required": [MANIFEST],
    "properties": {
        MANIFEST: {"type": "string", "description": "the manifest as JSON text"},
        CONTENTS: {
            "type": "string",
            "format": "binary",
            "description": "a tar.gz of the contents that are missing: regular files named by their sha256, without "
            "extended headers",
        },
    },
}
_FORM_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {"schema": body_schema(Manifest)},
            "multipart/form-data": {"schema": _FORM_SCHEMA},
        },
    }
}
_RESPONSES: dict[int | str, dict[str, Any]] = {
    415: {"model": ErrorView, "description": "The body is neither JSON nor a form."},
    507: {"model": ErrorView, "description": "The disk is full."},
}


async def _read_body(request: Request, app_state: AppStateDep, caller: Caller) -> AsyncIterator[SubmissionBody]:
    # The key and its limit are checked before the first byte of an upload is read.
    app_state.limits.submissions.acquire(caller.id)
    async with received(request, app_state, part=CONTENTS, spec=(MANIFEST, MAX_MANIFEST_BYTES)) as body:
        yield body


_Body = Annotated[SubmissionBody, Depends(_read_body, scope="function")]


@router.get("/{sha256}")
def show_workspace(app_state: AppStateDep, caller: PageCaller, sha256: str) -> WorkspaceView:
    """Return the size of the stored workspace with this digest."""
    stored = app_state.workspaces.stat(sha256) if may_use_workspace(app_state, caller.id, sha256) else None
    if stored is None:
        raise WorkspaceNotFound("No workspace with this sha256 is stored here; upload it with the job.", field="sha256")
    return _present(stored)


@router.post("/missing", openapi_extra=json_body_schema(Manifest), responses={415: _RESPONSES[415]})
async def find_missing_contents(
    app_state: AppStateDep, caller: Caller, body: _Body, base: _Base = None
) -> MissingContents:
    """Return the contents to send along with a manifest. Stores nothing."""

    def find() -> list[str]:
        usable = base if base and may_use_workspace(app_state, caller.id, base) else None
        return app_state.workspaces.find_missing(body.spec, base=usable, limits=workspace_limits(app_state))

    return MissingContents(missing=await _run(app_state, caller.id, find))


@router.put("/{sha256}", openapi_extra=_FORM_BODY, responses=_RESPONSES)
async def store_workspace(
    app_state: AppStateDep, caller: Caller, sha256: str, body: _Body, base: _Base = None
) -> WorkspaceView:
    """Store a workspace as its manifest, whose digest names it, and the contents that are missing."""

    def store() -> StoredWorkspace:
        stored = app_state.workspaces.add_manifest(
            body.spec,
            body.workspace,
            workspace_limits(app_state),
            expected_sha256=sha256,
            base=base if base and may_use_workspace(app_state, caller.id, base) else None,
            may_be_stored=may_use_workspace(app_state, caller.id, sha256),
        )
        app_state.workspaces.record_sender(sha256, caller.id)
        return stored

    return _present(await _run(app_state, caller.id, store))


async def _run(app_state: AppState, key: str, action: Callable[[], T]) -> T:
    try:
        return await run_with_upload_slot(app_state, key, action)
    except OSError as error:
        raise StoreUnavailable(f"The workspace could not be stored: {error.strerror}. Try again later.") from error


def _present(stored: StoredWorkspace) -> WorkspaceView:
    return WorkspaceView(sha256=stored.sha256, size=stored.unpacked_bytes)
