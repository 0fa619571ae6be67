"""Last values of the metrics of jobs."""

# Runs while the release before is still serving: it only adds (CONTRIBUTING.md, "A migration"). Everything that it
# locks stays locked until all of it is done; where it has to wait for a lock, all of it is tried again.

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None
serves = "0001"  # the oldest revision whose code may still run on what this makes


def upgrade() -> None:
    """One release forward."""
    op.create_table(
        "last_metrics",
        sa.Column("job_id", sa.String(length=16), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("value", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_last_metrics_job_id_jobs")),
        sa.PrimaryKeyConstraint("job_id", "name", name=op.f("pk_last_metrics")),
    )
    op.create_index("ix_last_metrics_name_value", "last_metrics", ["name", "value"], unique=False)


def downgrade() -> None:
    """And back."""
    op.drop_index("ix_last_metrics_name_value", "last_metrics")

    op.drop_table("last_metrics")
