"""The database's schema: bring it up to date, and check that it is."""

from importlib.resources import files
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection

from core.db import Database
from core.errors import DatabaseOutdated


def configuration(connection: Connection | None = None) -> Config:
    """Alembic's configuration, with the migrations that came with this release."""
    config = Config()
    config.set_main_option("script_location", str(Path(str(files("migrations")))))
    config.set_main_option("file_template", "%%(year)d_%%(month).2d_%%(day).2d_%%(slug)s")
    config.attributes["connection"] = connection
    return config


def upgrade(database: Database, revision: str = "head") -> None:
    """Bring the schema forward to `revision`; a repeat does nothing."""
    with database.engine.execution_options(gradient_write=True).begin() as connection:
        command.upgrade(configuration(connection), revision)


def downgrade(database: Database, revision: str) -> None:
    """Take the schema back to `revision` (`base`: nothing is left)."""
    with database.engine.execution_options(gradient_write=True).begin() as connection:
        command.downgrade(configuration(connection), revision)


def check(database: Database) -> None:
    """Make sure that the schema is this release's.

    Raises:
        DatabaseOutdated: It is not.
    """
    expected = ScriptDirectory.from_config(configuration()).get_current_head()
    with database.engine.connect() as connection:
        found = MigrationContext.configure(connection).get_current_revision()
    if found != expected:
        raise DatabaseOutdated(
            f"The database's schema is {found or 'empty'}, this release needs {expected}. "
            "Run `gradient-server migrate` first."
        )
