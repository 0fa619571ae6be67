"""An index of each key's queued jobs, for the limit on their number."""

# Runs while the previous release is still serving. The index holds queued jobs alone, so it is small and soon made.

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None
serves = "0001"

_QUEUED = sa.text("state = 'queued'")


def upgrade() -> None:
    """Apply this migration."""
    op.create_index("ix_jobs_key_queue", "jobs", ["submitted_by"], sqlite_where=_QUEUED, postgresql_where=_QUEUED)


def downgrade() -> None:
    """Revert this migration."""
    op.drop_index("ix_jobs_key_queue", "jobs")
