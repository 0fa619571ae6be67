"""Secrets, registry logins, and host ports of jobs."""

# Runs while the previous release is still serving: every new column may stay empty or has a default.

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None
serves = "0001"


def upgrade() -> None:
    """Apply this migration."""
    op.add_column("jobs", sa.Column("any_ports", sa.Integer(), server_default="0", nullable=False))
    op.create_table(
        "wanted_ports",
        sa.Column("port", sa.Integer(), nullable=False),
        sa.Column("job_id", sa.String(length=16), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_wanted_ports_job_id_jobs")),
        sa.PrimaryKeyConstraint("port", "job_id", name=op.f("pk_wanted_ports")),
    )
    op.create_index(op.f("ix_wanted_ports_job_id"), "wanted_ports", ["job_id"])
    op.create_table(
        "held_ports",
        sa.Column("host", sa.String(length=255), nullable=False),
        sa.Column("port", sa.Integer(), nullable=False),
        sa.Column("job_id", sa.String(length=16), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("internal", sa.Integer(), nullable=False),
        sa.Column("address", sa.String(length=255), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_held_ports_job_id_jobs")),
        sa.PrimaryKeyConstraint("host", "port", name=op.f("pk_held_ports")),
    )
    op.create_index(op.f("ix_held_ports_job_id"), "held_ports", ["job_id"])
    op.create_table(
        "secrets",
        sa.Column("project_id", sa.String(length=16), nullable=False),
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("sealed", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("project_id", "name", name=op.f("pk_secrets")),
    )
    op.create_table(
        "registries",
        sa.Column("host", sa.String(length=255), nullable=False),
        sa.Column("username", sa.String(length=255), nullable=False),
        sa.Column("sealed", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("host", name=op.f("pk_registries")),
    )
    op.create_table(
        "job_logins",
        sa.Column("job_id", sa.String(length=16), nullable=False),
        sa.Column("sealed", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_job_logins_job_id_jobs")),
        sa.PrimaryKeyConstraint("job_id", name=op.f("pk_job_logins")),
    )


def downgrade() -> None:
    """Revert this migration."""
    for table in ("job_logins", "registries", "secrets", "held_ports", "wanted_ports"):
        op.drop_table(table)
    op.drop_column("jobs", "any_ports")
