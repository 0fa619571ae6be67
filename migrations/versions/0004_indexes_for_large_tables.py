"""Indexes that keep reads quick however many jobs there are."""

# Runs while the release before is still serving: it only adds (CONTRIBUTING.md, "A migration"). On PostgreSQL, writes
# to the jobs wait for the indexes: about a second for each million of jobs.

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None
serves = "0001"  # the oldest revision whose code may still run on what this makes

_ACTIVE = sa.text("finished_at IS NULL")


def upgrade() -> None:
    """One release forward."""
    op.create_index("ix_jobs_active", "jobs", ["project_id", "state"], sqlite_where=_ACTIVE, postgresql_where=_ACTIVE)
    op.create_index("ix_jobs_machine_type_seq", "jobs", ["machine_type", "seq"])
    op.create_index("ix_jobs_name_seq", "jobs", ["name", "seq"])


def downgrade() -> None:
    """Back to the release before."""
    for name in ("ix_jobs_name_seq", "ix_jobs_machine_type_seq", "ix_jobs_active"):
        op.drop_index(name, table_name="jobs")
