"""Indexes for counts of waiting jobs and of projects' jobs, and for the last failures."""

# Runs while the release before is still serving: it only adds (CONTRIBUTING.md, "A migration"). On PostgreSQL, writes
# to the jobs wait for the indexes: about a second for each million of jobs.

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None
serves = "0003"  # the oldest revision whose code may still run on what this makes

_QUEUED = sa.text("state || '' = 'queued'")  # spelled as in the reads, which must not use the index on the state
_FAILED = sa.text("state || '' = 'failed'")
_NOT_DELETED = sa.text("deleted_at IS NULL")


def upgrade() -> None:
    """One release forward."""
    waiting = ["machine_type", "created_at"]
    op.create_index("ix_jobs_waiting", "jobs", waiting, sqlite_where=_QUEUED, postgresql_where=_QUEUED)
    op.create_index("ix_jobs_failed", "jobs", ["finished_at"], sqlite_where=_FAILED, postgresql_where=_FAILED)
    op.create_index(
        "ix_jobs_project_id_kept", "jobs", ["project_id"], sqlite_where=_NOT_DELETED, postgresql_where=_NOT_DELETED
    )


def downgrade() -> None:
    """Back to the release before."""
    for name in ("ix_jobs_project_id_kept", "ix_jobs_failed", "ix_jobs_waiting"):
        op.drop_index(name, table_name="jobs")
