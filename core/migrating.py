"""This release's migrations: run them on a database, forward and back. `core.schema` tells whether that is needed."""

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

from core import schema
from core.db import Base, Database
from core.errors import DatabaseOutdated, ReleaseOutdated, StoreUnavailable

logger = logging.getLogger(__name__)

_ADVISORY_LOCK = 0x6A6F_6273_0001  # of PostgreSQL: whoever changes the schema has it until it commits
# While a change waits for a table everybody else waits behind it: it gives up soon, lets them pass, and tries again.
# Sooner than PostgreSQL looks for deadlocks (1 s), so that the one to give way is it and not a request.
_LOCK_SECONDS = 0.8
_PAUSE_SECONDS = 1.0
_TRIES = 60
_LOCK_NOT_AVAILABLE, _DEADLOCK = "55P03", "40P01"


def configuration(connection: Connection | None = None) -> Config:
    """Alembic's configuration, with the migrations that came with this release."""
    config = Config()
    config.set_main_option("script_location", str(schema.MIGRATIONS))
    config.set_main_option("file_template", "%%(year)d_%%(month).2d_%%(day).2d_%%(slug)s")
    config.attributes["connection"] = connection
    return config


def steps() -> list[Script]:
    """The migrations of this release, the first one first."""
    return list(ScriptDirectory.from_config(configuration()).walk_revisions())[::-1]


def retired() -> set[str]:
    """Tables (`table`) and columns (`table.column`) that may still be there, but are of no use to this release."""
    return {name for step in steps() for name in getattr(step.module, "retires", ())}


def expression_indexes() -> set[str]:
    """Names of the indexes over expressions: SQLite does not tell the expression, so they cannot be compared there."""
    return {
        str(index.name)
        for table in Base.metadata.tables.values()
        for index in table.indexes
        if not all(isinstance(expression, Column) for expression in index.expressions)
    }


def upgrade(database: Database, revision: str = "head") -> schema.State:
    """Bring the schema forward to `revision`; a repeat does nothing, and neither does a release that is behind.

    Several at once take turns: one does it, the others find it done.

    Returns:
        How the database stands now; newer only if it was so before.

    Raises:
        ReleaseOutdated: The database is newer, and this release cannot run on it.
        StoreUnavailable: Somebody else kept a table locked all the time.
    """

    def forward(connection: Connection) -> schema.State:
        state = schema.look(connection)
        if state.standing in {schema.Standing.NEWER, schema.Standing.UNSERVED}:
            return schema.accept(state)
        command.upgrade(configuration(connection), revision)
        _record(connection)
        return schema.look(connection)

    return _in_turn(database, forward)


def downgrade(database: Database, revision: str) -> schema.State:
    """Take the schema back to `revision` (`base`: nothing is left), with what later ones keep.

    Returns:
        How the database stands now.

    Raises:
        ReleaseOutdated: The database is newer: only that release knows the way back.
        DatabaseOutdated: The revision is none of this release's, or the database is behind it.
        StoreUnavailable: Somebody else kept a table locked all the time.
    """

    def back(connection: Connection) -> schema.State:
        state = schema.look(connection)
        if state.standing in {schema.Standing.NEWER, schema.Standing.UNSERVED}:
            raise ReleaseOutdated(f"{state.message} Only the release that migrated it can take it back.")
        behind = _until(state.found)
        if revision not in {"base", "-1", *behind}:
            raise DatabaseOutdated(
                f"The schema cannot be taken back to {revision!r}: from {state.found or 'nothing'} the way back leads "
                f"to {', '.join(reversed(behind)) or 'nothing'}."
            )
        command.downgrade(configuration(connection), revision)
        _record(connection)
        return schema.look(connection)

    return _in_turn(database, back)


def _in_turn(database: Database, change: Callable[[Connection], schema.State]) -> schema.State:
    """Run `change` in a transaction of its own, one process at a time: all of it happens, or nothing."""
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
        "The schema was not changed: somebody else kept a table locked, for instance a backup or a session that left "
        "its transaction open (pg_stat_activity shows it). Try again when it has ended."
    )


@contextmanager
def _on_postgres(engine: Engine) -> Iterator[Connection]:
    with engine.begin() as connection:
        # An index over a large table takes longer than our other statements may, and whoever is before us as long.
        connection.exec_driver_sql("SET LOCAL statement_timeout = 0")
        connection.exec_driver_sql("SET LOCAL lock_timeout = 0")
        connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_ADVISORY_LOCK})")
        connection.exec_driver_sql(f"SET LOCAL lock_timeout = {round(_LOCK_SECONDS * 1000)}")
        yield connection


@contextmanager
def _on_sqlite(engine: Engine) -> Iterator[Connection]:
    """A table that is changed is built anew and takes the old one's place: foreign keys are checked at the end."""
    with engine.connect() as connection:
        driver: sqlite3.Connection = connection.connection.driver_connection  # type: ignore[assignment] # a plain one
        driver.execute("PRAGMA foreign_keys=OFF")  # does nothing within a transaction
        try:
            with connection.begin():
                yield connection
                broken = connection.exec_driver_sql("PRAGMA foreign_key_check").first()
                if broken is not None:
                    raise StoreUnavailable(f"The schema was not changed: a row of {broken[0]!r} refers to none there.")
        finally:
            driver.execute("PRAGMA foreign_keys=ON")


def _until(revision: str | None) -> list[str]:
    """The revisions up to this one, itself included."""
    known = schema.revisions()
    return known[: known.index(revision) + 1] if revision in known else []


def _record(connection: Connection) -> None:
    """Leave in the database which releases may run on it: once one is shut out, it stays so."""
    if not inspect(connection).has_table(schema.SchemaInfo.__tablename__):
        return
    known = _until(schema.look(connection).found)
    serves = max((step.module.serves for step in steps() if step.revision in known), key=known.index)
    if schema.served(connection) != serves:
        connection.execute(delete(schema.SchemaInfo).where(schema.SchemaInfo.name == schema.SERVES))
        connection.execute(insert(schema.SchemaInfo).values(name=schema.SERVES, value=serves))
