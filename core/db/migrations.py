"""Migrates the schema of a database to this version; `schema_check` tells whether that is needed."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from alembic import command
from alembic.config import Config
from sqlalchemy import Column, Connection, Engine
from sqlalchemy.exc import OperationalError

from core.db import schema_check
from core.db.database import Base, Database
from core.errors import StoreUnavailable

ADVISORY_LOCK = 0x6A6F_6273_0001  # a PostgreSQL advisory lock, held by a schema change until it commits
# While a schema change waits for a table lock, all others queue behind it: so it gives up before they notice.
LOCK_SECONDS = 5
_OTHER_UPGRADE_SECONDS = 600  # for another process's; not for ever, as any role may take that lock
_LOCK_NOT_AVAILABLE = "55P03"


def configuration(connection: Connection | None = None) -> Config:
    config = Config()
    config.set_main_option("script_location", str(schema_check.MIGRATIONS))
    config.set_main_option("file_template", "%%(year)d_%%(month).2d_%%(day).2d_%%(slug)s")
    config.attributes["connection"] = connection
    return config


def expression_indexes() -> set[str]:
    """Return the names of indexes over expressions, which cannot be compared on SQLite: it does not report them."""
    return {
        str(index.name)
        for table in Base.metadata.tables.values()
        for index in table.indexes
        if not all(isinstance(expression, Column) for expression in index.expressions)
    }


def upgrade(database: Database, revision: str = "head") -> None:
    """Migrate the schema forward to `revision`; does nothing if it is there already.

    Concurrent calls take turns: the first one migrates, the others find nothing to do. Raises `StoreUnavailable`:
    another session kept a table locked, or the lock that upgrades take.
    """
    transaction = _on_sqlite if database.is_sqlite else _on_postgres
    try:
        with transaction(database.engine.execution_options(gradient_write=True)) as connection:
            state = schema_check.read_state(connection)
            if state.status is schema_check.SchemaStatus.UNKNOWN:
                schema_check.require_current(state)
            command.upgrade(configuration(connection), revision)
    except OperationalError as error:
        if getattr(error.orig, "sqlstate", None) != _LOCK_NOT_AVAILABLE:
            raise
        raise StoreUnavailable(
            "The schema was not changed: another session kept a table locked or holds the lock of schema changes, for "
            "example a backup or a session that left its transaction open (pg_stat_activity shows it). Try again when "
            "that session has ended."
        ) from error


@contextmanager
def _on_postgres(engine: Engine) -> Iterator[Connection]:
    with engine.begin() as connection:
        # An index over a large table takes longer than the usual timeouts, and so does waiting for another process.
        for timeout in ("statement_timeout", "idle_in_transaction_session_timeout"):
            connection.exec_driver_sql(f"SET LOCAL {timeout} = 0")
        connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{_OTHER_UPGRADE_SECONDS}s'")
        connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({ADVISORY_LOCK})")
        connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{LOCK_SECONDS}s'")
        yield connection


@contextmanager
def _on_sqlite(engine: Engine) -> Iterator[Connection]:
    """Open a transaction without foreign key checks until its end: altering a table rebuilds and replaces it."""
    with engine.connect() as connection:
        driver: sqlite3.Connection = connection.connection.driver_connection  # type: ignore[assignment] # a plain one
        driver.execute("PRAGMA foreign_keys=OFF")  # does nothing within a transaction
        try:
            with connection.begin():
                yield connection
                broken = connection.exec_driver_sql("PRAGMA foreign_key_check").first()
                if broken is not None:
                    raise StoreUnavailable(
                        f"The schema was not changed: a row of {broken[0]!r} refers to a missing row."
                    )
        finally:
            driver.execute("PRAGMA foreign_keys=ON")
