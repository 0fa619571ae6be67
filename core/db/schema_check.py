"""Checks whether this version can run on the schema of a database.

Every process checks at its start, so migrations are parsed as text here; `core.db.migrations` runs them, with Alembic,
which is slow to import.
"""

import re
from dataclasses import dataclass
from enum import StrEnum
from importlib.resources import files
from pathlib import Path

from sqlalchemy import Connection, column, inspect, select, table

from core.db.database import Database, database_missing
from core.errors import SchemaMismatch
from core.settings.database import sqlite_file

MIGRATIONS = Path(str(files("migrations")))  # the folder of this version's migrations

_VERSIONS = table("alembic_version", column("version_num"))
_NAMED = re.compile(r"^(revision|down_revision) = ['\"](.+)['\"]$", re.MULTILINE)


class SchemaStatus(StrEnum):
    CURRENT = "current"
    EMPTY = "empty"
    OLDER = "older"
    UNKNOWN = "unknown"
    """Of no migration that this version has: it is of a later version, or of one before the first release."""


@dataclass(frozen=True)
class SchemaState:
    status: SchemaStatus
    found: str | None  # the database's revision; None if it is empty
    needed: str  # this version's revision

    @property
    def message(self) -> str:
        return {
            SchemaStatus.CURRENT: "The schema matches this version.",
            SchemaStatus.EMPTY: f"The database's schema is empty, this version needs {self.needed}.",
            SchemaStatus.OLDER: f"The database's schema is {self.found}, this version needs {self.needed}.",
            SchemaStatus.UNKNOWN: (
                f"The database's schema is {self.found}, which is unknown to this version; it needs {self.needed}."
            ),
        }[self.status]

    @property
    def fix(self) -> str | None:
        """Instructions for the operator; None if nothing needs to be done."""
        return {
            SchemaStatus.CURRENT: None,
            SchemaStatus.EMPTY: "Run `gradient-server migrate`.",
            SchemaStatus.OLDER: "Make a backup, then run `gradient-server migrate`.",
            SchemaStatus.UNKNOWN: (
                "Install the version that created it, restore a backup of this version, or start with an empty "
                "database. Nothing was changed."
            ),
        }[self.status]


def revisions() -> list[str]:
    """Return the revisions of this version's migrations, oldest first."""
    texts = [file.read_text("utf-8") for file in (MIGRATIONS / "versions").glob("*.py")]
    named = [dict(_NAMED.findall(text)) for text in texts]
    after = {revision.get("down_revision"): revision["revision"] for revision in named if revision}
    ordered: list[str] = []
    while following := after.get(ordered[-1] if ordered else None):
        ordered.append(following)
    return ordered


def check(database: Database) -> None:
    """Raise `SchemaMismatch` unless the schema is this version's.

    Raises `DatabaseMissing`: it is an empty file of SQLite, and not this process's to fill.
    """
    state, file = get_state(database), sqlite_file(database.url)
    if state.status is SchemaStatus.EMPTY and file is not None and not database.creates:
        raise database_missing(file)
    require_current(state)


def get_state(database: Database) -> SchemaState:
    """Return the schema's state without raising for any of them; changes nothing."""
    with database.engine.connect() as connection:
        return read_state(connection)


def read_state(connection: Connection) -> SchemaState:
    all_revisions, current = revisions(), _current_revision(connection)
    if current is None:
        status = SchemaStatus.EMPTY
    elif current in all_revisions:
        status = SchemaStatus.CURRENT if current == all_revisions[-1] else SchemaStatus.OLDER
    else:
        status = SchemaStatus.UNKNOWN
    return SchemaState(status, current, all_revisions[-1])


def require_current(state: SchemaState) -> None:
    """Raise `SchemaMismatch` unless the schema is this version's."""
    if state.fix is not None:
        raise SchemaMismatch(f"{state.message} {state.fix}")


def _current_revision(connection: Connection) -> str | None:
    if not inspect(connection).has_table(_VERSIONS.name):
        return None
    revision: str | None = connection.scalar(select(_VERSIONS.c.version_num))
    return revision
