"""Restricts GRADIENT_HOME to its owner, even if a user or an earlier release created it."""

import os
from contextlib import suppress
from pathlib import Path

from core.settings import Settings

_FOLDERS = ("workspaces", "logs", "artifacts", "attempts", "workers")
"""Closed to jobs: their own folders are mounted one by one."""
_SQLITE = "sqlite:///"


def keep_private(settings: Settings) -> None:
    """Create GRADIENT_HOME and deny others access to it and its folders; what another user owns is left as it is."""
    settings.root.mkdir(parents=True, exist_ok=True, mode=0o700)
    for folder in (settings.root, *(settings.root / name for name in _FOLDERS)):
        with suppress(FileNotFoundError, PermissionError):
            folder.chmod(0o700)
    if settings.database_url.startswith(_SQLITE):
        database = Path(settings.database_url.removeprefix(_SQLITE))
        database.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with suppress(PermissionError):  # SQLite gives the files beside the database (-wal, -shm) the same mode
            os.close(os.open(database, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
            database.chmod(0o600)
