"""Waiting at startup for an unavailable database or disk.

Transient failures are waited for: a server that is down or starting, a disk that is full or read-only. Wrong settings
are an error at once: an address, a password, a database that does not exist. A file of SQLite that the service may be
about to create is waited for, but only for some seconds.
"""

import errno
import logging
import sqlite3
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from sqlalchemy.exc import DBAPIError

from core.db.ballast import release_ballast
from core.db.database import require_database
from core.errors import DatabaseMissing, GradientError, StoreUnavailable
from core.monitoring.logging import announce
from core.settings import Settings

T = TypeVar("T")

CREATION_SECONDS = 10.0  # that a worker waits for the service to create an SQLite database
_RETRY_SECONDS = 1.0
_REPORT_SECONDS = 300.0
_DISK_ERRNOS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.ESTALE})
# PostgreSQL's permanent errors, and libpq's for an address. Any other may be transient: a starting server has many.
REFUSED_OPTION = "unsupported startup parameter"  # part of the error of PgBouncer
POOLER_FIX = "If PgBouncer or another transaction pooler is in between, set GRADIENT_DATABASE__TRANSACTION_POOLER=true."
_PERMANENT_MESSAGES = (
    REFUSED_OPTION,
    "authentication failed",
    "no password supplied",
    "no pg_hba.conf entry",
    "does not exist",
    "is not permitted to log in",
    "Name or service not known",
    "invalid port number",
    "invalid integer value",
    "invalid sslmode value",
    "invalid connection option",
)


class DatabaseRefused(GradientError):
    """A permanent database error: it refuses the connection or is damaged, or its address is wrong."""


def wait_until_ready(
    settings: Settings,
    prepare: Callable[[], T],
    report: Callable[[str], None] = lambda _: None,
    *,
    create: bool = True,
) -> T:
    """Call `prepare` until disk and database are available, printing to stderr what it waits for.

    Args:
        settings: Name the disk, and the database that is needed without `create`.
        prepare: Called until it returns.
        report: Told what it waits for.
        create: Whether this process may create the database; if not, it waits a moment for the one that does.

    Raises:
        OSError: A permanent error of the disk.
        DatabaseMissing: The database does not exist.
    """
    reported_at: float | None = None
    started_at = time.monotonic()
    while True:
        try:
            if not create:
                require_database(settings)  # before anything is made
            _require_disk(settings.root)
            ready = prepare()
        except (DBAPIError, OSError, DatabaseMissing, StoreUnavailable) as error:
            why = _describe_wait(error, settings, time.monotonic() - started_at)
        else:
            if reported_at is not None:
                announce("Available now: starting.")
            return ready
        if reported_at is None or time.monotonic() - reported_at >= _REPORT_SECONDS:
            reported_at = time.monotonic()
            announce(f"Waiting: {why} The start continues as soon as this is resolved.", logging.WARNING)
            report(f"It waits: {why}")
        time.sleep(_RETRY_SECONDS)


def _require_disk(root: Path) -> None:
    root.mkdir(parents=True, exist_ok=True, mode=0o700)
    release_ballast(root)
    with tempfile.TemporaryFile(dir=root) as file:
        file.write(bytes(4096))
        file.flush()


def _describe_wait(
    error: DBAPIError | OSError | DatabaseMissing | StoreUnavailable, settings: Settings, seconds: float
) -> str:
    """Describe what a process waits for, given how long it has; raise what waiting does not mend."""
    cause = error.__cause__ if isinstance(error, StoreUnavailable) else error
    if isinstance(cause, DBAPIError | OSError):
        return describe_failure(cause, settings.root)
    if isinstance(cause, DatabaseMissing) and seconds < CREATION_SECONDS:
        return f"the service has not created the database {settings.sqlite_file}."
    raise error


def describe_failure(error: DBAPIError | OSError, root: Path) -> str:
    """Describe a transient failure; raise a permanent one as `DatabaseRefused`."""
    if isinstance(error, OSError):
        if error.errno in _DISK_ERRNOS:
            return f"{root} cannot be written ({error.strerror})."
        raise error
    message = str(error.orig).strip().splitlines()[0]
    if isinstance(error.orig, sqlite3.Error):
        if isinstance(error.orig, sqlite3.OperationalError):
            return f"the database under {root} cannot be used ({message})."
        raise DatabaseRefused(
            f"The database under {root} cannot be read: {message}. Restore it from a backup."
        ) from error
    if any(phrase in message for phrase in _PERMANENT_MESSAGES):
        raise DatabaseRefused(
            f"The database refused the connection: {message}. "
            + (POOLER_FIX if REFUSED_OPTION in message else "Correct GRADIENT_DATABASE__URL.")
        ) from error
    return f"the database does not answer ({message})."
