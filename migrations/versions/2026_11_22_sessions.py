"""Browser sessions, one-time tokens, and expiry of API keys."""

# Runs while the previous release is still serving: the new column may stay empty, and the tables are new.

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None
serves = "0001"


def upgrade() -> None:
    """Apply this migration."""
    op.add_column("api_keys", sa.Column("expires_at", sa.DateTime(timezone=True)))
    op.create_table(
        "sessions",
        sa.Column("id", sa.String(length=16), nullable=False),
        sa.Column("sha256", sa.LargeBinary(length=32), nullable=False),
        sa.Column("key_id", sa.String(length=16), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("last_used_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["key_id"], ["api_keys.id"], name=op.f("fk_sessions_key_id_api_keys")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_sessions")),
        sa.UniqueConstraint("sha256", name=op.f("uq_sessions_sha256")),
    )
    op.create_index(op.f("ix_sessions_key_id"), "sessions", ["key_id"])
    op.create_index(op.f("ix_sessions_expires_at"), "sessions", ["expires_at"])
    op.create_table(
        "one_time_tokens",
        sa.Column("sha256", sa.LargeBinary(length=32), nullable=False),
        sa.Column("purpose", sa.String(length=16), nullable=False),
        sa.Column("subject", sa.String(length=16), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("sha256", name=op.f("pk_one_time_tokens")),
    )
    op.create_index(op.f("ix_one_time_tokens_expires_at"), "one_time_tokens", ["expires_at"])


def downgrade() -> None:
    """Revert this migration."""
    op.drop_table("one_time_tokens")
    op.drop_table("sessions")
    op.drop_column("api_keys", "expires_at")
