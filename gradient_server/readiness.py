"""Waiting, at a process's start, for a database or a disk that is away.

What passes by itself is waited for: a server that is down or starting, a disk that is full or read-only. What somebody
has to mend in the settings is an error at once: an address, a password, a database that does not exist.
"""

import errno
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from sqlalchemy.exc import DBAPIError

from core.errors import GradientError

T = TypeVar("T")

_PAUSE_SECONDS = 1.0
_SAY_AGAIN_SECONDS = 300.0
_DISK = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.ESTALE})
# PostgreSQL's refusals for good, and libpq's of an address. Anything else may pass: a server that starts says much.
_REFUSALS = (
    "authentication failed",
    "no password supplied",
    "no pg_hba.conf entry",
    "does not exist",
    "is not permitted to log in",
    "Name or service not known",
    "invalid port number",
    "invalid integer value",
)


class DatabaseRefused(GradientError):
    """The database answers, and refuses; or it can never be reached as the settings name it."""


def wait_until_ready(root: Path, prepare: Callable[[], T]) -> T:
    """Call `prepare` until disk and database are there, and say on stderr what is waited for.

    Args:
        root: GRADIENT_HOME; it is made if it is missing, and has to take a file.
        prepare: What needs the database; it is repeated from the start.

    Raises:
        DatabaseRefused: Waiting would not help.
        OSError: Likewise, of the disk.
    """
    said_at: float | None = None
    while True:
        try:
            _try_disk(root)
            ready = prepare()
        except (DBAPIError, OSError) as error:
            why = _why(error, root)
        else:
            if said_at is not None:
                print("It is there now: starting.", file=sys.stderr, flush=True)
            return ready
        if said_at is None or time.monotonic() - said_at >= _SAY_AGAIN_SECONDS:
            said_at = time.monotonic()
            print(f"Waiting: {why} This starts by itself once that has passed.", file=sys.stderr, flush=True)
        time.sleep(_PAUSE_SECONDS)


def _try_disk(root: Path) -> None:
    root.mkdir(parents=True, exist_ok=True, mode=0o700)
    with tempfile.TemporaryFile(dir=root) as file:
        file.write(bytes(4096))
        file.flush()


def _why(error: DBAPIError | OSError, root: Path) -> str:
    """The sentence for what passes; raises for what does not."""
    if isinstance(error, OSError):
        if error.errno in _DISK:
            return f"{root} cannot be written ({error.strerror})."
        raise error
    said = str(error.orig).strip().splitlines()[0]
    if isinstance(error.orig, sqlite3.Error):
        if isinstance(error.orig, sqlite3.OperationalError):
            return f"the database under {root} cannot be used ({said})."
        raise DatabaseRefused(f"The database under {root} cannot be read: {said}. Restore it from a backup.") from error
    if any(words in said for words in _REFUSALS):
        raise DatabaseRefused(f"The database refuses: {said}. Mend GRADIENT_DATABASE__URL.") from error
    return f"the database does not answer ({said})."
