"""Uploaded workspaces, as manifests of files."""

from core.storage.workspaces.store import StoredWorkspace, WorkspaceStore
from core.storage.workspaces.stored_files import StoredFile

__all__ = ["StoredFile", "StoredWorkspace", "WorkspaceStore"]
