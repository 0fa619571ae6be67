"""The database's schema: bring it up to date, and tell whether this release can run on what is there.

Old and new processes run side by side during an upgrade, so a database may be ahead of a process. Which revisions'
code still runs on it only the newer release knows: it leaves the answer in the database, where the older one reads it.
"""

import logging
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from importlib.resources import files
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import Script, ScriptDirectory
from sqlalchemy import Column, Connection, Engine, String, delete, insert, inspect, select
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Mapped, mapped_column

from core.db import Base, Database
from core.errors import DatabaseOutdated, ReleaseOutdated, StoreUnavailable

logger = logging.getLogger(__name__)

MIGRATIONS = Path(str(files("migrations")))
"""Those that came with this release."""

_SERVES = "serves"
_ADVISORY_LOCK = 0x6A6F_6273_0001  # of PostgreSQL: whoever changes the schema has it until it commits
# While a change waits for a table everybody else waits behind it: it gives up soon, lets them pass, and tries again.
# Sooner than PostgreSQL looks for deadlocks (1 s), so that the one to give way is it and not a request.
_LOCK_SECONDS = 0.8
_PAUSE_SECONDS = 1.0
_TRIES = 60
_LOCK_NOT_AVAILABLE, _DEADLOCK = "55P03", "40P01"


class SchemaInfo(Base):
    """What the schema says of itself. Older releases read it: this table is never changed."""

    __tablename__ = "schema_info"

    name: Mapped[str] = mapped_column(String(64), primary_key=True)
    """`serves`: the oldest revision whose code may still run here."""
    value: Mapped[str] = mapped_column(String(255))


class Standing(StrEnum):
    """How a database stands to this release."""

    CURRENT = "current"
    EMPTY = "empty"
    OLDER = "older"
    NEWER = "newer"
    """Of a later release, which says that this one may still run on it."""
    UNSERVED = "unserved"
    """Of a later release, which does not."""


@dataclass(frozen=True)
class State:
    """The schema that is there, beside the one of this release."""

    standing: Standing
    found: str | None
    """The database's revision; None if it is empty."""
    needed: str
    """This release's revision."""

    @property
    def message(self) -> str:
        """What is so, as a sentence."""
        return {
            Standing.CURRENT: "The schema is this release's.",
            Standing.EMPTY: f"The database's schema is empty, this release needs {self.needed}.",
            Standing.OLDER: f"The database's schema is {self.found}, this release needs {self.needed}.",
            Standing.NEWER: f"The database (revision {self.found}) is newer than this release ({self.needed}), and "
            "still serves it.",
            Standing.UNSERVED: f"The database (revision {self.found}) is newer than this release ({self.needed}), and "
            "no longer serves it.",
        }[self.standing]

    @property
    def fix(self) -> str | None:
        """What to do about it, as sentences; None if there is nothing to do."""
        migrate = "Make a backup, then run `gradient-server migrate`."
        return {
            Standing.CURRENT: None,
            Standing.EMPTY: "Run `gradient-server migrate`.",
            Standing.OLDER: migrate,
            Standing.NEWER: "Upgrade this process to the release that the database was migrated by.",
            Standing.UNSERVED: "Install the release that the database was migrated by, or restore the backup from "
            "before. Nothing was changed.",
        }[self.standing]


def configuration(connection: Connection | None = None) -> Config:
    """Alembic's configuration, with the migrations that came with this release."""
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
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


def upgrade(database: Database, revision: str = "head") -> State:
    """Bring the schema forward to `revision`; a repeat does nothing, and neither does a release that is behind.

    Several at once take turns: one does it, the others find it done.

    Returns:
        How the database stands now; newer only if it was so before.

    Raises:
        ReleaseOutdated: The database is newer, and this release cannot run on it.
        StoreUnavailable: Somebody else kept a table locked all the time.
    """

    def forward(connection: Connection) -> State:
        state = look(connection)
        if state.standing in {Standing.NEWER, Standing.UNSERVED}:
            return _accept(state)
        command.upgrade(configuration(connection), revision)
        _record(connection)
        return look(connection)

    return _in_turn(database, forward)


def downgrade(database: Database, revision: str) -> State:
    """Take the schema back to `revision` (`base`: nothing is left), with what later ones keep.

    Returns:
        How the database stands now.

    Raises:
        ReleaseOutdated: The database is newer: only that release knows the way back.
        DatabaseOutdated: The revision is none of this release's, or the database is behind it.
        StoreUnavailable: Somebody else kept a table locked all the time.
    """

    def back(connection: Connection) -> State:
        state = look(connection)
        if state.standing in {Standing.NEWER, Standing.UNSERVED}:
            raise ReleaseOutdated(f"{state.message} Only the release that migrated it can take it back.")
        behind = _until(state.found)
        if revision not in {"base", "-1", *behind}:
            raise DatabaseOutdated(
                f"The schema cannot be taken back to {revision!r}: from {state.found or 'nothing'} the way back leads "
                f"to {', '.join(reversed(behind)) or 'nothing'}."
            )
        command.downgrade(configuration(connection), revision)
        _record(connection)
        return look(connection)

    return _in_turn(database, back)


def check(database: Database) -> State:
    """Make sure that this release can run on the database.

    A newer database that still serves this release is accepted, with a warning in the log.

    Raises:
        DatabaseOutdated: It has to be migrated first.
        ReleaseOutdated: It is newer, and this release cannot run on it.
    """
    return _accept(examine(database))


def examine(database: Database) -> State:
    """How the database stands; nothing is raised and nothing changed."""
    with database.engine.connect() as connection:
        return look(connection)


def look(connection: Connection) -> State:
    """How the database stands, within a transaction."""
    known = [step.revision for step in steps()]
    found = MigrationContext.configure(connection).get_current_revision()
    if found is None:
        standing = Standing.EMPTY
    elif found in known:
        standing = Standing.CURRENT if found == known[-1] else Standing.OLDER
    else:
        standing = Standing.NEWER if _read(connection) in known else Standing.UNSERVED
    return State(standing, found, known[-1])


def _accept(state: State) -> State:
    if state.standing is Standing.UNSERVED:
        raise ReleaseOutdated(f"{state.message} {state.fix}")
    if state.standing in {Standing.EMPTY, Standing.OLDER}:
        raise DatabaseOutdated(f"{state.message} {state.fix}")
    if state.standing is Standing.NEWER:
        logger.warning("database_is_newer", extra={"found": state.found, "known": state.needed, "fix": state.fix})
    return state


def _in_turn(database: Database, change: Callable[[Connection], State]) -> State:
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
    known = [step.revision for step in steps()]
    return known[: known.index(revision) + 1] if revision in known else []


def _record(connection: Connection) -> None:
    """Leave in the database which releases may run on it: once one is shut out, it stays so."""
    if not inspect(connection).has_table(SchemaInfo.__tablename__):
        return
    known = _until(MigrationContext.configure(connection).get_current_revision())
    serves = max((step.module.serves for step in steps() if step.revision in known), key=known.index)
    if _read(connection) != serves:
        connection.execute(delete(SchemaInfo).where(SchemaInfo.name == _SERVES))
        connection.execute(insert(SchemaInfo).values(name=_SERVES, value=serves))


def _read(connection: Connection) -> str | None:
    if not inspect(connection).has_table(SchemaInfo.__tablename__):
        return None
    value: str | None = connection.scalar(select(SchemaInfo.value).where(SchemaInfo.name == _SERVES))
    return value
