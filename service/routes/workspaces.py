"""Stored workspace archives, so that clients upload the same folder only once."""

from fastapi import APIRouter

from core.errors import WorkspaceNotFound
from service.deps import AppStateDep
from service.schemas.jobs import WorkspaceView

router = APIRouter(prefix="/workspaces", tags=["workspaces"])


@router.get("/{sha256}")
def show_workspace(app_state: AppStateDep, sha256: str) -> WorkspaceView:
    """Return the size of the stored archive with this digest."""
    stored = app_state.workspaces.stat(sha256)
    if stored is None:
        raise WorkspaceNotFound("No archive with this sha256 is stored here; upload it with the job.", field="sha256")
    return WorkspaceView(sha256=stored.sha256, size=stored.size)
