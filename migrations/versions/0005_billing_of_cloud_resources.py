"""Billing of cloud resources."""

# Runs while the release before is still serving: it only adds (CONTRIBUTING.md, "A migration"). Everything that it
# locks stays locked until all of it is done; where it has to wait for a lock, all of it is tried again.

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None
serves = "0002"  # the oldest revision whose code may still run on what this makes


def upgrade() -> None:
    """One release forward."""
    op.add_column("resources", sa.Column("billed_until", sa.DateTime(timezone=True), nullable=True))
    op.add_column("resources", sa.Column("price_per_hour", sa.Double(), nullable=True))


def downgrade() -> None:
    """And back."""
    op.drop_column("resources", "price_per_hour")
    op.drop_column("resources", "billed_until")
