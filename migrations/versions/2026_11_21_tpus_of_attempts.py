"""Which TPU an attempt has."""

# Runs while the release before is still serving: the column may stay empty.

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None
serves = "0001"


def upgrade() -> None:
    """One release forward."""
    op.add_column("attempts", sa.Column("tpu", sa.JSON(none_as_null=True)))


def downgrade() -> None:
    """And back."""
    op.drop_column("attempts", "tpu")
