"""Archives that are stored already, so that the same folder is uploaded once."""

from fastapi import APIRouter

from core.errors import WorkspaceNotFound
from service.deps import Stores
from service.wire import WorkspaceView

router = APIRouter(prefix="/workspaces", tags=["workspaces"])


@router.get("/{sha256}")
def show_workspace(stores: Stores, sha256: str) -> WorkspaceView:
    """Whether the archive with this digest is stored."""
    stored = stores.workspaces.stat(sha256)
    if stored is None:
        raise WorkspaceNotFound("No archive with this sha256 is stored here; send it along.", field="sha256")
    return WorkspaceView(sha256=stored.sha256, size=stored.size)
