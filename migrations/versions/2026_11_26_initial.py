"""Creates the tables of `core/db/models`: until 1.0 no database is kept over a change of them."""

from alembic import op

from core.db.database import Base

# The digest of the tables, which tests/migrations prints: so a database of another commit's tables is refused.
revision = "548bc5c415ce"
down_revision = None


def upgrade() -> None:
    Base.metadata.create_all(op.get_bind(), checkfirst=False)
