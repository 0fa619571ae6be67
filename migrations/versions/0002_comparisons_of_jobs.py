"""Comparisons of jobs."""

# Runs while the release before is still serving: it only adds (CONTRIBUTING.md, "A migration"). Everything that it
# locks stays locked until all of it is done; where it has to wait for a lock, all of it is tried again.

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None
serves = "0001"  # the oldest revision whose code may still run on what this makes


def upgrade() -> None:
    """One release forward."""
    op.create_table(
        "comparisons",
        sa.Column("seq", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("id", sa.String(length=16), nullable=False),
        sa.Column("project_id", sa.String(length=16), nullable=False),
        sa.Column("submitted_by", sa.String(length=16), nullable=False),
        sa.Column("idempotency_key", sa.String(length=255), nullable=True),
        sa.Column("request_sha256", sa.String(length=64), nullable=True),
        sa.Column("name", sa.String(length=200), nullable=True),
        sa.Column("metric", sa.String(length=100), nullable=True),
        sa.Column("goal", sa.String(length=3), nullable=False),
        sa.Column("target", sa.Double(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"], name=op.f("fk_comparisons_project_id_projects")),
        sa.PrimaryKeyConstraint("seq", name=op.f("pk_comparisons")),
        sa.UniqueConstraint("id", name=op.f("uq_comparisons_id")),
    )
    op.create_index("ix_comparisons_project_id_seq", "comparisons", ["project_id", "seq"], unique=False)
    op.create_index("uq_comparisons_idempotency", "comparisons", ["submitted_by", "idempotency_key"], unique=True)

    op.create_table(
        "comparison_jobs",
        sa.Column("comparison_id", sa.String(length=16), nullable=False),
        sa.Column("job_id", sa.String(length=16), nullable=False),
        sa.ForeignKeyConstraint(
            ["comparison_id"], ["comparisons.id"], name=op.f("fk_comparison_jobs_comparison_id_comparisons")
        ),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_comparison_jobs_job_id_jobs")),
        sa.PrimaryKeyConstraint("comparison_id", "job_id", name=op.f("pk_comparison_jobs")),
    )
    op.create_index(op.f("ix_comparison_jobs_job_id"), "comparison_jobs", ["job_id"], unique=False)


def downgrade() -> None:
    """And back."""
    op.drop_index(op.f("ix_comparison_jobs_job_id"), "comparison_jobs")

    op.drop_table("comparison_jobs")
    op.drop_index("uq_comparisons_idempotency", "comparisons")
    op.drop_index("ix_comparisons_project_id_seq", "comparisons")

    op.drop_table("comparisons")
