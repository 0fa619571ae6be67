"""Bringing the schema up to date where a process or a command may do so unasked."""

from core import schema
from core.db import Database


def prepare_schema(database: Database, *, migrate: bool = False) -> None:
    """Have the schema be this release's, or one that serves it. Only what has to be migrated loads Alembic.

    Args:
        database: Which one.
        migrate: Bring it up to date; SQLite's, which one machine has to itself, is so in any case.

    Raises:
        DatabaseOutdated: It has to be migrated first.
        ReleaseOutdated: It is newer, and this release cannot run on it.
        StoreUnavailable: Somebody else kept a table locked all the time.
    """
    state = schema.examine(database)
    behind = state.standing in {schema.Standing.EMPTY, schema.Standing.OLDER}
    if behind and (migrate or database.is_sqlite):
        from core import migrating

        migrating.upgrade(database)
    else:
        schema.accept(state)
