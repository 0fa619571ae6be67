"""The parts of GRADIENT_HOME that a worker makes its own when it starts."""

import fcntl
import os
from contextlib import suppress
from pathlib import Path

from core.errors import WorkerNameTaken
from worker.backends.job_processes import boot_id

_ID_CHARS = 64  # of the column


def host_id(root: Path) -> str:
    """Return what tells this host from a copy of it: its boot, and the folder GRADIENT_HOME on its disk."""
    folder = root.stat()
    return f"{boot_id()} {folder.st_dev:x}:{folder.st_ino:x}"[:_ID_CHARS]


def close_job_folders(root: Path) -> None:
    """Keep other users of this host from programs that jobs leave: these may have the setuid bit of a job's user."""
    for name in ("attempts", "environments", "storage/projects"):
        folder = root / name
        folder.mkdir(parents=True, exist_ok=True)
        with suppress(PermissionError):  # it is another user's
            folder.chmod(0o700)


def lock_worker_name(path: Path, name: str) -> int:
    """Lock the worker's name on this host; the kernel releases the lock when this process ends."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        raise WorkerNameTaken(
            f"A worker named {name!r} is running on this machine already. Stop it first, or give this one another "
            "name with --name."
        ) from error
    return descriptor
