"""Runs this release's migrations on a database, forward and back; `schema_check` tells whether that is needed."""

import logging
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from alembic import command
from alembic.config import Config
from alembic.script import Script, ScriptDirectory
from sqlalchemy import Column, Connection, Engine, delete, insert, inspect
from sqlalchemy.exc import OperationalError

from core.db import schema_check
from core.db.database import Base, Database
from core.errors import DatabaseOutdated, ReleaseOutdated, StoreUnavailable

logger = logging.getLogger(__name__)

_ADVISORY_LOCK = 0x6A6F_6273_0001  # a PostgreSQL advisory lock, held by a schema change until it commits
# While a schema change waits for a table lock, all others queue behind it: so it times out, pauses, and retries.
# Shorter than PostgreSQL's deadlock_timeout (1 s), so that the schema change gives way and not a request.
_IDLE_SECONDS = 600
_LOCK_SECONDS = 0.8
_PAUSE_SECONDS = 1.0
_TRIES = 60
_LOCK_NOT_AVAILABLE, _DEADLOCK = "55P03", "40P01"


def configuration(connection: Connection | None = None) -> Config:
    """Return Alembic's configuration for this release's migrations."""
    config = Config()
    config.set_main_option("script_location", str(schema_check.MIGRATIONS))
    config.set_main_option("file_template", "%%(rev)s_%%(slug)s")
    config.attributes["connection"] = connection
    return config


def list_migrations() -> list[Script]:
    """Return the migrations of this release, oldest first."""
    return list(ScriptDirectory.from_config(configuration()).walk_revisions())[::-1]


def retired() -> set[str]:
    """Return tables (`table`) and columns (`table.column`) that may still exist, but that this release does not use."""
    return {name for step in list_migrations() for name in getattr(step.module, "retires", ())}


def expression_indexes() -> set[str]:
    """Return the names of indexes over expressions, which cannot be compared on SQLite: it does not report them."""
    return {
        str(index.name)
        for table in Base.metadata.tables.values()
        for index in table.indexes
        if not all(isinstance(expression, Column) for expression in index.expressions)
    }


def upgrade(database: Database, revision: str = "head") -> schema_check.SchemaState:
    """Migrate the schema forward to `revision`; does nothing if it is there already, or newer than this release.

    Concurrent calls take turns: the first one migrates, the others find nothing to do.

    Returns:
        The schema's state now; newer only if it was so before.

    Raises:
        ReleaseOutdated: The database is newer, and this release cannot run on it.
        StoreUnavailable: Another session kept a table locked all the time.
    """

    def forward(connection: Connection) -> schema_check.SchemaState:
        state = schema_check.read_state(connection)
        if state.status in {schema_check.SchemaStatus.NEWER, schema_check.SchemaStatus.UNSERVED}:
            return schema_check.require_compatible(state)
        command.upgrade(configuration(connection), revision)
        _record_oldest_compatible(connection)
        return schema_check.read_state(connection)

    return _with_lock(database, forward)


def downgrade(database: Database, revision: str) -> schema_check.SchemaState:
    """Migrate the schema back to `revision` (`base`: drop everything); data of later revisions is lost.

    Returns:
        The schema's state now.

    Raises:
        ReleaseOutdated: The database is newer: only that release can migrate it back.
        DatabaseOutdated: The revision is not one of this release's, or the database is behind it.
        StoreUnavailable: Another session kept a table locked all the time.
    """

    def back(connection: Connection) -> schema_check.SchemaState:
        state = schema_check.read_state(connection)
        if state.status in {schema_check.SchemaStatus.NEWER, schema_check.SchemaStatus.UNSERVED}:
            raise ReleaseOutdated(f"{state.message} Only the release that migrated it can migrate it back.")
        behind = _revisions_up_to(state.found)
        if revision not in {"base", "-1", *behind}:
            raise DatabaseOutdated(
                f"The schema cannot be migrated back to {revision!r}: from {state.found or 'nothing'} it can go back "
                f"to {', '.join(reversed(behind)) or 'nothing'}."
            )
        command.downgrade(configuration(connection), revision)
        _record_oldest_compatible(connection)
        return schema_check.read_state(connection)

    return _with_lock(database, back)


def _with_lock(
    database: Database, change: Callable[[Connection], schema_check.SchemaState]
) -> schema_check.SchemaState:
    """Run `change` in its own transaction, in one process at a time."""
    transaction = _on_sqlite if database.is_sqlite else _on_postgres
    for _ in range(_TRIES):
        try:
            with transaction(database.engine.execution_options(gradient_write=True)) as connection:
                return change(connection)
        except OperationalError as error:
            if getattr(error.orig, "sqlstate", None) not in {_LOCK_NOT_AVAILABLE, _DEADLOCK}:
                raise
            logger.warning("migration_waits_for_lock", extra={"error": str(error.orig).splitlines()[0]})
        time.sleep(_PAUSE_SECONDS)
    raise StoreUnavailable(
        "The schema was not changed: another session kept a table locked, for example a backup or a session that left "
        "its transaction open (pg_stat_activity shows it). Try again when that session has ended."
    )


@contextmanager
def _on_postgres(engine: Engine) -> Iterator[Connection]:
    with engine.begin() as connection:
        # An index over a large table takes longer than the usual timeouts, and so does waiting for another process.
        connection.exec_driver_sql("SET LOCAL statement_timeout = 0")
        connection.exec_driver_sql("SET LOCAL lock_timeout = 0")
        # A step may compute for long between two statements; a process that hangs still gives its locks back.
        connection.exec_driver_sql(f"SET LOCAL idle_in_transaction_session_timeout = {_IDLE_SECONDS * 1000}")
        connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_ADVISORY_LOCK})")
        connection.exec_driver_sql(f"SET LOCAL lock_timeout = {round(_LOCK_SECONDS * 1000)}")
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


def _revisions_up_to(revision: str | None) -> list[str]:
    """Return the revisions up to and including this one."""
    known = schema_check.revisions()
    return known[: known.index(revision) + 1] if revision in known else []


def _record_oldest_compatible(connection: Connection) -> None:
    """Record the oldest release that may run on the database: the newest `serves` of the applied migrations."""
    if not inspect(connection).has_table(schema_check.SchemaInfo.__tablename__):
        return
    known = _revisions_up_to(schema_check.read_state(connection).found)
    serves = max((step.module.serves for step in list_migrations() if step.revision in known), key=known.index)
    if schema_check.oldest_compatible(connection) != serves:
        connection.execute(delete(schema_check.SchemaInfo).where(schema_check.SchemaInfo.name == schema_check.SERVES))
        connection.execute(insert(schema_check.SchemaInfo).values(name=schema_check.SERVES, value=serves))
