"""Storage quotas of projects, and workers with too little disk space to claim jobs."""

# Runs while the previous release is still serving: the columns may stay empty.

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None
serves = "0001"


def upgrade() -> None:
    """Apply this migration."""
    op.add_column("projects", sa.Column("max_stored_mb", sa.Integer()))
    op.add_column("workers", sa.Column("low_disk", sa.Text()))


def downgrade() -> None:
    """Revert this migration."""
    op.drop_column("workers", "low_disk")
    op.drop_column("projects", "max_stored_mb")
