"""Logins for the git servers of workspaces, encrypted."""

# Runs while the previous release is still serving: every new column may stay empty or has a default.

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None
serves = "0001"


def upgrade() -> None:
    """Apply this migration."""
    op.create_table(
        "git_logins",
        sa.Column("job_id", sa.String(length=16), nullable=False),
        sa.Column("sealed", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_git_logins_job_id_jobs")),
        sa.PrimaryKeyConstraint("job_id", name=op.f("pk_git_logins")),
    )


def downgrade() -> None:
    """Revert this migration."""
    op.drop_table("git_logins")
