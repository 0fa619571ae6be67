"""Checks the schema at startup, and migrates it where that is allowed without being asked."""

from core.db import schema_check
from core.db.ballast import keep_ballast
from core.db.database import Database


def prepare_schema(database: Database, *, migrate: bool = False) -> None:
    """Make sure that the schema is this version's. Alembic is imported only for a migration.

    `migrate`: migrate its schema; that of SQLite, which only one machine uses, is always migrated. An empty database
    gets tables only from a process that may create it. Raises `StoreUnavailable`: another connection kept a table
    locked during the migration.
    """
    status = schema_check.get_state(database).status
    empty = status is schema_check.SchemaStatus.EMPTY and database.creates
    if (empty or status is schema_check.SchemaStatus.OLDER) and (migrate or database.is_sqlite):
        from core.db import migrations

        migrations.upgrade(database)
    else:
        schema_check.check(database)
    keep_ballast(database)
