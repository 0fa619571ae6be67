from dataclasses import dataclass, field

from core.db.database import Database
from core.settings import Settings
from core.storage.artifacts.store import ArtifactStore
from core.storage.joblogs.store import JobLogs
from core.storage.shared.folders import SharedStorage
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
        """Open the stores that are folders below GRADIENT_HOME."""
        self.workspaces = WorkspaceStore(self.settings.root / "workspaces")
        self.logs = JobLogs(self.settings.root / "logs", max_bytes=self.settings.logs.max_bytes)
        self.storage = SharedStorage(self.settings.root / "storage")
