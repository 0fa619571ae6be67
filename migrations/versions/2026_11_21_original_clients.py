"""Users who sign in with a password, and project fields of the original clients."""

# Runs while the previous release is still serving: every new column may stay empty.

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None
serves = "0001"


def _columns() -> list[sa.Column]:
    return [
        sa.Column("tags", sa.JSON(none_as_null=True)),
        sa.Column("repo_name", sa.String(length=200)),
        sa.Column("repo_url", sa.String(length=2000)),
        sa.Column("deleted_at", sa.DateTime(timezone=True)),
    ]


def upgrade() -> None:
    """Apply this migration."""
    op.create_table(
        "users",
        sa.Column("id", sa.String(length=16), nullable=False),
        sa.Column("email", sa.String(length=254), nullable=False),
        sa.Column("password", sa.String(length=255), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_users")),
        sa.UniqueConstraint("email", name=op.f("uq_users_email")),
    )
    op.create_table(
        "user_keys",
        sa.Column("key_id", sa.String(length=16), nullable=False),
        sa.Column("user_id", sa.String(length=16), nullable=False),
        sa.ForeignKeyConstraint(["key_id"], ["api_keys.id"], name=op.f("fk_user_keys_key_id_api_keys")),
        sa.PrimaryKeyConstraint("key_id", name=op.f("pk_user_keys")),
    )
    op.create_index(op.f("ix_user_keys_user_id"), "user_keys", ["user_id"])
    for column in _columns():
        op.add_column("projects", column)


def downgrade() -> None:
    """Revert this migration."""
    for column in _columns():
        op.drop_column("projects", column.name)
    op.drop_table("user_keys")
    op.drop_table("users")
