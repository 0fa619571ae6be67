"""Workspaces of submissions: who may name a stored one, and storing what is uploaded."""

from dataclasses import replace
from typing import BinaryIO

from sqlalchemy import select

from core.db.models.jobs import Job
from core.db.models.schedules import Schedule
from core.db.models.sweeps import Sweep
from core.errors import StoreUnavailable, WorkspaceNotFound
from core.jobs import queries
from core.jobs.spec.job_spec import JobSpec
from core.security.visibility import hidden_projects
from core.storage.workspaces import StoredWorkspace
from core.storage.workspaces.limits import WorkspaceLimits
from service.app_state import AppState


def workspace_limits(app_state: AppState) -> WorkspaceLimits:
    api = app_state.settings.api
    return WorkspaceLimits(max_upload_bytes=api.max_upload_bytes, max_bytes=api.max_upload_bytes)


def with_workspace(spec: JobSpec, workspace: StoredWorkspace | None) -> JobSpec:
    if workspace is None:
        return spec
    return replace(spec, workspace_sha256=workspace.sha256, workspace_contents=workspace.contents_sha256)


def may_use_workspace(app_state: AppState, key_id: str, sha256: str) -> bool:
    """Return whether a key may name this workspace: all may, but to whom projects are hidden those seen or sent."""
    with app_state.database.read() as session:
        if not hidden_projects(session) or app_state.workspaces.was_sent_by(sha256, key_id):
            return True
        for table in (Job, Schedule, Sweep):
            named = select(table.spec_json["workspace_sha256"].as_string().label("digest")).order_by(table.seq.desc())
            newest = named.limit(queries.SORTED_JOBS).subquery()
            if session.scalar(select(newest.c.digest).where(newest.c.digest == sha256).limit(1)):
                return True
    return False


def check_stored(app_state: AppState, key_id: str, sha256: str | None) -> None:
    if sha256 is None or (may_use_workspace(app_state, key_id, sha256) and app_state.workspaces.has(sha256)):
        return
    raise _not_stored()


def store_workspace(
    app_state: AppState, key_id: str, upload: BinaryIO | None, expected: str | None
) -> StoredWorkspace | None:
    """Store an uploaded workspace, or mark a stored one as used; None: there is none."""
    if upload is None:
        if expected is None:
            return None
        # Marked as used, so that it is not deleted before the job that refers to it is stored.
        used = app_state.workspaces.mark_used(expected) if may_use_workspace(app_state, key_id, expected) else None
        if used is None:
            raise _not_stored()
        return used
    try:
        stored = app_state.workspaces.add(upload, workspace_limits(app_state), expected_sha256=expected)
        app_state.workspaces.record_sender(stored.sha256, key_id)
    except OSError as error:
        raise StoreUnavailable(f"The workspace could not be stored: {error.strerror}. Try again later.") from error
    return stored


def _not_stored() -> WorkspaceNotFound:
    return WorkspaceNotFound(
        "No workspace with this sha256 is stored here; upload it with the job.", field="workspaceSha256"
    )
