"""How much a project may keep, and which workers have too little disk to claim."""

# Runs while the release before is still serving: the columns may stay empty.

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None
serves = "0001"


def upgrade() -> None:
    """One release forward."""
    op.add_column("projects", sa.Column("max_stored_mb", sa.Integer()))
    op.add_column("workers", sa.Column("low_disk", sa.Text()))


def downgrade() -> None:
    """And back."""
    op.drop_column("workers", "low_disk")
    op.drop_column("projects", "max_stored_mb")
