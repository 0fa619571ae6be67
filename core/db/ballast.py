"""Space inside SQLite's own files that lets a database on a full disk still be changed.

Free pages of the database and a write-ahead log that keeps its size: both are on the disk already, so nothing that
fills it can take them. Rows can then be added, changed and deleted until the pages are used up.
"""

import logging

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from core.db.database import Database

logger = logging.getLogger(__name__)

_BYTES = 4 << 20
_TABLE = "ballast"


def keep_ballast(database: Database) -> None:
    """Make the ballast, if more than half of it is used up; a disk without room for it is tried again later."""
    if not database.is_sqlite:
        return
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


def _free_bytes(connection: Connection) -> int:
    pages = connection.exec_driver_sql("PRAGMA freelist_count").scalar_one()
    return int(pages) * int(connection.exec_driver_sql("PRAGMA page_size").scalar_one())
