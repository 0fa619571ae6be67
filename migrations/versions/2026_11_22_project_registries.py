"""Registry logins of single projects, and permission to push."""

# Runs while the previous release is still serving: the new column has a default, by which no stored account pushes.

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None
serves = "0001"


def upgrade() -> None:
    """Apply this migration."""
    op.add_column("registries", sa.Column("push", sa.Boolean(), server_default=sa.false(), nullable=False))
    op.create_table(
        "project_registries",
        sa.Column("project_id", sa.String(length=16), nullable=False),
        sa.Column("host", sa.String(length=255), nullable=False),
        sa.Column("username", sa.String(length=255), nullable=False),
        sa.Column("sealed", sa.Text(), nullable=False),
        sa.Column("push", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("project_id", "host", name=op.f("pk_project_registries")),
    )


def downgrade() -> None:
    """Revert this migration."""
    op.drop_table("project_registries")
    op.drop_column("registries", "push")
