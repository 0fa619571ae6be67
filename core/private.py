"""GRADIENT_HOME is its owner's alone, also where it was made by somebody else or by an earlier release."""

import os
from contextlib import suppress
from pathlib import Path

from core.settings import Settings

_FOLDERS = ("workspaces", "logs", "artifacts", "attempts", "workers")
"""Jobs get theirs mounted one by one, and need no way through these."""
_SQLITE = "sqlite:///"


def keep_private(settings: Settings) -> None:
    """Make GRADIENT_HOME, and close it and what is in it to everybody else; what is not ours stays as it is."""
    settings.root.mkdir(parents=True, exist_ok=True, mode=0o700)
    for folder in (settings.root, *(settings.root / name for name in _FOLDERS)):
        with suppress(FileNotFoundError, PermissionError):
            folder.chmod(0o700)
    if settings.database_url.startswith(_SQLITE):
        database = Path(settings.database_url.removeprefix(_SQLITE))
        database.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with suppress(PermissionError):  # its readers and writers share what SQLite puts beside it with this mode
            os.close(os.open(database, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
            database.chmod(0o600)
