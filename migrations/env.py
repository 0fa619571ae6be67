"""How Alembic reaches the database; `core.migrations` passes the engine in."""

from alembic import context

import core.jobs.models  # noqa: F401 - the import registers the tables
from core.db import Base, UtcDateTime


def _render(kind: str, item: object, _context: object) -> str | bool:
    """Write our column types in a migration as the plain ones they are made of."""
    if kind == "type" and isinstance(item, UtcDateTime):
        return "sa.DateTime(timezone=True)"
    return False


def _include(_item: object, name: str | None, kind: str, *_: object) -> bool:
    """Leave out the index that SQLite cannot describe: it goes by an expression, and would be made anew each time."""
    return not (
        kind == "index" and name in {"ix_jobs_queue", "ix_jobs_project_queue"} and connection.dialect.name == "sqlite"
    )


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
