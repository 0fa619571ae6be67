"""Requested and actual images of jobs, and the images present on hosts."""

# Runs while the previous release is still serving: every new column may stay empty.

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None
serves = "0001"


def upgrade() -> None:
    """Apply this migration."""
    op.create_table(
        "held_images",
        sa.Column("host", sa.String(length=255), nullable=False),
        sa.Column("reference", sa.String(length=512), nullable=False),
        sa.PrimaryKeyConstraint("host", "reference", name=op.f("pk_held_images")),
    )
    op.create_index("ix_held_images_reference", "held_images", ["reference"])
    op.add_column("jobs", sa.Column("image", sa.String(length=512)))
    op.add_column("jobs", sa.Column("image_digest", sa.String(length=592)))
    op.add_column("attempts", sa.Column("image_digest", sa.String(length=592)))


def downgrade() -> None:
    """Revert this migration."""
    op.drop_column("attempts", "image_digest")
    op.drop_column("jobs", "image_digest")
    op.drop_column("jobs", "image")
    op.drop_index("ix_held_images_reference", table_name="held_images")
    op.drop_table("held_images")
