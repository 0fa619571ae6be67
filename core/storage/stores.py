from dataclasses import dataclass, field
from importlib import import_module

from core.db.database import Database
from core.settings import Settings
from core.storage.artifacts.store import ArtifactStore
from core.storage.joblogs.store import JobLogs
from core.storage.shared.folders import SharedStorage
from core.storage.shared.uploaded_files import Objects, UploadedFiles
from core.storage.workspaces import WorkspaceStore


@dataclass(kw_only=True)
class Stores:
    """Settings, database, and the stores below GRADIENT_HOME or in a bucket."""

    settings: Settings
    database: Database
    artifacts: ArtifactStore
    workspaces: WorkspaceStore = field(init=False)
    logs: JobLogs = field(init=False)
    storage: SharedStorage = field(init=False)  # the folders that jobs share as `/storage`

    def __post_init__(self) -> None:
        """Open the stores that are folders below GRADIENT_HOME, also where files are in a bucket, too.

        Raises `StoreUnavailable`: the bucket's credentials are missing.
        """
        self.workspaces = WorkspaceStore(self.settings.root / "workspaces")
        self.logs = JobLogs(self.settings.root / "logs", max_bytes=self.settings.logs.max_bytes)
        self.storage = SharedStorage(self.settings.root / "storage", self._open_uploaded())

    def _open_uploaded(self) -> UploadedFiles | None:
        if self.settings.store.url is None or self.settings.worker.service_url is not None:
            return None
        # Loaded only where it is used: its library takes time and memory.
        objects: Objects = import_module("core.storage.buckets.files").BucketFiles(self.settings, "storage")
        return UploadedFiles(self.database, objects)
