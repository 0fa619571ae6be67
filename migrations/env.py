"""Alembic's environment; `core.db.migrations` passes the connection in."""

from alembic import context
from sqlalchemy.schema import SchemaItem

import core.db.models.budgets
import core.db.models.changes
import core.db.models.comparisons
import core.db.models.credentials
import core.db.models.job_dependencies
import core.db.models.job_params
import core.db.models.jobs
import core.db.models.metrics
import core.db.models.notifications
import core.db.models.project_members
import core.db.models.saved_views
import core.db.models.schedules
import core.db.models.sweeps
import core.db.models.uploads
import core.jobs.cloud_resources  # noqa: F401 - these imports register the tables
from core.db import migrations
from core.db.database import Base, UtcDateTime


def _render(kind: str, item: object, _context: object) -> str | bool:
    """Write our column types in a migration as the plain SQLAlchemy types that they wrap."""
    if kind == "type" and isinstance(item, UtcDateTime):
        return "sa.DateTime(timezone=True)"
    return False


def _include(_item: SchemaItem, name: str | None, kind: str, *_: object) -> bool:
    """Leave out indexes that SQLite cannot describe, which would be created again each time."""
    return not (kind == "index" and connection.dialect.name == "sqlite" and name in migrations.expression_indexes())


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
