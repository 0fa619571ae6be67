"""Writes the migration that takes an up-to-date database to what core/db/models say now.

Compared is a new SQLite database with every migration so far. Read the result before it is committed: a renamed
column looks like one that went and one that came.
"""

import sys
import tempfile
from pathlib import Path

from alembic import command

from core.db import migrations
from core.db.database import Database


def main(name: str) -> None:
    """Write the migration that `name` describes."""
    if not name.strip():
        sys.exit('error: say what changes: make migration name="a column for tags"')
    with tempfile.TemporaryDirectory() as folder:
        database = Database(f"sqlite:///{Path(folder) / 'gradient.db'}")
        migrations.upgrade(database)
        with database.engine.begin() as connection:
            command.revision(migrations.configuration(connection), message=name, autogenerate=True)
        database.close()


if __name__ == "__main__":
    main(" ".join(sys.argv[1:]))
