"""Creates the tables of `core/db/models`: until 1.0 no database is kept over a change of them."""

from alembic import op
from sqlalchemy.schema import CreateIndex, CreateTable

from core.db.database import Base

# The digest of the tables, which tests/migrations prints: so a database of another commit's tables is refused.
revision = "5d1cf158ecb7"
down_revision = None


def upgrade() -> None:
    """Create the tables, and their indexes in one order: of two that cost the same SQLite takes the newest.

    Which that has to be, the tests of query plans say.
    """
    for table in Base.metadata.sorted_tables:
        op.execute(CreateTable(table))
        for index in sorted(table.indexes, key=lambda index: str(index.name), reverse=True):
            op.execute(CreateIndex(index))
