"""Alembic's environment; `core.db.migrations` passes the connection in."""

from alembic import context
from sqlalchemy import Column
from sqlalchemy.schema import SchemaItem

import core.db.models.comparisons
import core.db.models.credentials
import core.db.models.jobs
import core.db.models.metrics
import core.jobs.cloud_resources  # noqa: F401 - these imports register the tables
from core.db import migrations
from core.db.database import Base, UtcDateTime


def _render(kind: str, item: object, _context: object) -> str | bool:
    """Write our column types in a migration as the plain SQLAlchemy types that they wrap."""
    if kind == "type" and isinstance(item, UtcDateTime):
        return "sa.DateTime(timezone=True)"
    return False


def _include(item: SchemaItem, name: str | None, kind: str, *_: object) -> bool:
    """Leave out retired names, and indexes that SQLite cannot describe, which would be created again each time."""
    if kind == "index":
        return connection.dialect.name != "sqlite" or name not in migrations.expression_indexes()
    full = f"{item.table.name}.{name}" if isinstance(item, Column) else name
    return full not in migrations.retired()


connection = context.config.attributes["connection"]
context.configure(
    connection=connection,
    target_metadata=Base.metadata,
    render_as_batch=connection.dialect.name == "sqlite",
    compare_type=True,
    render_item=_render,
    include_object=_include,
)
with context.begin_transaction():
    context.run_migrations()
