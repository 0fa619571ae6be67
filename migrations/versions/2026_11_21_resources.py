"""Cloud resources that are billed."""

# Runs while the previous release is still serving: a table of its own, which that release does not read.

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None
serves = "0001"

_BIG = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Apply this migration."""
    op.create_table(
        "resources",
        sa.Column("id", _BIG, autoincrement=True, nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("name", sa.String(length=255), nullable=False),
        sa.Column("job_id", sa.String(length=16), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("host", sa.String(length=255), nullable=False),
        sa.Column("state", sa.String(length=32), nullable=False),
        sa.Column("health", sa.String(length=32)),
        sa.Column("detail", sa.Text()),
        sa.Column("operation", sa.String(length=255)),
        sa.Column("intended_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("seen_at", sa.DateTime(timezone=True)),
        sa.Column("billed_at", sa.DateTime(timezone=True)),
        sa.Column("deleting_at", sa.DateTime(timezone=True)),
        sa.Column("gone_at", sa.DateTime(timezone=True)),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_resources_job_id_jobs")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_resources")),
    )
    unfinished = sa.text("gone_at IS NULL")
    op.create_index(
        "uq_resources_open",
        "resources",
        ["name"],
        unique=True,
        sqlite_where=unfinished,
        postgresql_where=unfinished,
    )
    op.create_index("ix_resources_job", "resources", ["job_id", "attempt"])


def downgrade() -> None:
    """Revert this migration."""
    op.drop_table("resources")
