"""Checks the schema at startup, and migrates it where that is allowed without being asked."""

from core.db import schema_check
from core.db.ballast import keep_ballast
from core.db.database import Database


def prepare_schema(database: Database, *, migrate: bool = False) -> None:
    """Make sure that the schema is this version's. Alembic is imported only for a migration.

    `migrate`: migrate its schema; that of SQLite, which only one machine uses, is always migrated. Raises
    `StoreUnavailable`: another connection kept a table locked during the migration.
    """
    state = schema_check.get_state(database)
    behind = state.status in {schema_check.SchemaStatus.EMPTY, schema_check.SchemaStatus.OLDER}
    if behind and (migrate or database.is_sqlite):
        from core.db import migrations

        migrations.upgrade(database)
    else:
        schema_check.require_current(state)
    keep_ballast(database)
