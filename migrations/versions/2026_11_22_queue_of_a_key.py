"""An index of each key's queued jobs, for the limit of how many there may be."""

# Runs while the release before is still serving. The index holds queued jobs alone, so it is small and soon made.

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None
serves = "0001"

_QUEUED = sa.text("state = 'queued'")


def upgrade() -> None:
    """One release forward."""
    op.create_index("ix_jobs_key_queue", "jobs", ["submitted_by"], sqlite_where=_QUEUED, postgresql_where=_QUEUED)


def downgrade() -> None:
    """And back."""
    op.drop_index("ix_jobs_key_queue", "jobs")
