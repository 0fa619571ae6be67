"""Checks whether this release can run on the schema of a database.

Every process checks at its start, so migrations are parsed as text here; `core.db.migrations` runs them, with Alembic,
which is slow to import.

Old and new processes run side by side during an upgrade, so a database may be ahead of a process. Only the newer
release knows which older ones can still run on it: it records that in the database, where they read it.
"""

import logging
import re
from dataclasses import dataclass
from enum import StrEnum
from importlib.resources import files
from pathlib import Path

from sqlalchemy import Connection, String, column, inspect, select, table
from sqlalchemy.orm import Mapped, mapped_column

from core.db.database import Base, Database
from core.errors import DatabaseOutdated, ReleaseOutdated

logger = logging.getLogger(__name__)

MIGRATIONS = Path(str(files("migrations")))
"""The folder of this release's migrations."""

SERVES = "serves"
"""The row of `SchemaInfo` that older releases read."""
_VERSIONS = table("alembic_version", column("version_num"))
_NAMED = re.compile(r"^(revision|down_revision) = ['\"](.+)['\"]$", re.MULTILINE)


class SchemaInfo(Base):
    """Values about the schema. Older releases read this table, so it must never change."""

    __tablename__ = "schema_info"

    name: Mapped[str] = mapped_column(String(64), primary_key=True)
    """`serves`: the oldest revision whose code may still run here."""
    value: Mapped[str] = mapped_column(String(255))


class SchemaStatus(StrEnum):
    """Schema of a database compared to this release."""

    CURRENT = "current"
    EMPTY = "empty"
    OLDER = "older"
    NEWER = "newer"
    """Of a later release, on which this one can still run."""
    UNSERVED = "unserved"
    """Of a later release, on which this one cannot run."""


@dataclass(frozen=True)
class SchemaState:
    """The schema's revision compared to that of this release."""

    status: SchemaStatus
    found: str | None
    """The database's revision; None if it is empty."""
    needed: str
    """This release's revision."""

    @property
    def message(self) -> str:
        """The state as a sentence."""
        return {
            SchemaStatus.CURRENT: "The schema matches this release.",
            SchemaStatus.EMPTY: f"The database's schema is empty, this release needs {self.needed}.",
            SchemaStatus.OLDER: f"The database's schema is {self.found}, this release needs {self.needed}.",
            SchemaStatus.NEWER: f"The database (revision {self.found}) is newer than this release ({self.needed}), "
            "which can still use it.",
            SchemaStatus.UNSERVED: f"The database (revision {self.found}) is newer than this release ({self.needed}), "
            "which can no longer use it.",
        }[self.status]

    @property
    def fix(self) -> str | None:
        """Instructions for the operator; None if nothing needs to be done."""
        migrate = "Make a backup, then run `gradient-server migrate`."
        return {
            SchemaStatus.CURRENT: None,
            SchemaStatus.EMPTY: "Run `gradient-server migrate`.",
            SchemaStatus.OLDER: migrate,
            SchemaStatus.NEWER: "Upgrade this process to the release that migrated the database.",
            SchemaStatus.UNSERVED: "Install the release that migrated the database, or restore the backup from "
            "before. Nothing was changed.",
        }[self.status]


def revisions() -> list[str]:
    """Return the revisions of this release's migrations, oldest first."""
    texts = [file.read_text("utf-8") for file in (MIGRATIONS / "versions").glob("*.py")]
    named = [dict(_NAMED.findall(text)) for text in texts]
    after = {one.get("down_revision"): one["revision"] for one in named if one}
    known: list[str] = []
    while following := after.get(known[-1] if known else None):
        known.append(following)
    return known


def check(database: Database) -> SchemaState:
    """Check that this release can run on the database.

    A newer database that still serves this release is accepted, with a warning in the log.

    Raises:
        DatabaseOutdated: The database must be migrated first.
        ReleaseOutdated: The database is newer, and this release cannot run on it.
    """
    return require_compatible(get_state(database))


def get_state(database: Database) -> SchemaState:
    """Return the schema's state without raising for any of them; changes nothing."""
    with database.engine.connect() as connection:
        return read_state(connection)


def read_state(connection: Connection) -> SchemaState:
    """Return the schema's state, within a transaction."""
    known, found = revisions(), _current_revision(connection)
    if found is None:
        status = SchemaStatus.EMPTY
    elif found in known:
        status = SchemaStatus.CURRENT if found == known[-1] else SchemaStatus.OLDER
    else:
        status = SchemaStatus.NEWER if oldest_compatible(connection) in known else SchemaStatus.UNSERVED
    return SchemaState(status, found, known[-1])


def require_compatible(state: SchemaState) -> SchemaState:
    """Return the state if this release can run on it; raises as `check` does."""
    if state.status is SchemaStatus.UNSERVED:
        raise ReleaseOutdated(f"{state.message} {state.fix}")
    if state.status in {SchemaStatus.EMPTY, SchemaStatus.OLDER}:
        raise DatabaseOutdated(f"{state.message} {state.fix}")
    if state.status is SchemaStatus.NEWER:
        logger.warning("database_is_newer", extra={"found": state.found, "known": state.needed, "fix": state.fix})
    return state


def _current_revision(connection: Connection) -> str | None:
    if not inspect(connection).has_table(_VERSIONS.name):
        return None
    revision: str | None = connection.scalar(select(_VERSIONS.c.version_num))
    return revision


def oldest_compatible(connection: Connection) -> str | None:
    """Return the oldest revision whose code can still run on the database, as recorded there."""
    if not inspect(connection).has_table(SchemaInfo.__tablename__):
        return None
    value: str | None = connection.scalar(select(SchemaInfo.value).where(SchemaInfo.name == SERVES))
    return value
