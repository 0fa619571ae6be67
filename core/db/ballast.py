"""Space that lets a SQLite database on a full disk still be changed.

Free pages of the database and a write-ahead log that keeps its size: both are on the disk already, so nothing that
fills it can take them. Rows can then be added, changed and deleted until the pages are used up. To open a database that
no process has open, SQLite makes its other files anew: they take the place of a file.
"""

import logging
import os
from contextlib import suppress
from pathlib import Path

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from core.db.database import Database
from core.system.filesystem import free_bytes

logger = logging.getLogger(__name__)

_BYTES = 4 << 20
_TABLE = "ballast"
_FILE = "ballast"
_FULL_BYTES = 1 << 20


def keep_ballast(database: Database) -> None:
    """Make the ballast, if more than half of it is used up; a disk without room for it is tried again later."""
    if not database.is_sqlite:
        return
    with suppress(OSError):
        _keep_file(Path(database.engine.url.database or "").parent / _FILE)
    writing = database.engine.execution_options(gradient_write=True)
    try:
        with writing.connect() as connection:
            missing = _BYTES - _free_bytes(connection)
            connection.rollback()
            if missing < _BYTES // 2:
                return
            # In two transactions: pages that are freed in the one that took them are never written.
            with connection.begin():
                connection.exec_driver_sql(f"DROP TABLE IF EXISTS {_TABLE}")
                connection.exec_driver_sql(f"CREATE TABLE {_TABLE} AS SELECT zeroblob({missing}) AS bytes")
            with connection.begin():
                connection.exec_driver_sql(f"DROP TABLE {_TABLE}")
    except DBAPIError as error:
        logger.warning("no_database_ballast", extra={"error": str(error.orig)})


def release_ballast(root: Path) -> None:
    """Delete the file, if the disk of GRADIENT_HOME is full and no process has its database open."""
    with suppress(OSError):
        if free_bytes(root) < _FULL_BYTES and not any(root.glob("*-shm")):
            (root / _FILE).unlink()


def _keep_file(file: Path) -> None:
    if file.exists() or free_bytes(file.parent) < 4 * _BYTES:
        return
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(descriptor, 0, 2 * _BYTES)
    finally:
        os.close(descriptor)


def _free_bytes(connection: Connection) -> int:
    pages = connection.exec_driver_sql("PRAGMA freelist_count").scalar_one()
    return int(pages) * int(connection.exec_driver_sql("PRAGMA page_size").scalar_one())
