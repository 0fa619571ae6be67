"""The TPU of an attempt."""

# Runs while the previous release is still serving: the column may stay empty.

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None
serves = "0001"


def upgrade() -> None:
    """Apply this migration."""
    op.add_column("attempts", sa.Column("tpu", sa.JSON(none_as_null=True)))


def downgrade() -> None:
    """Revert this migration."""
    op.drop_column("attempts", "tpu")
