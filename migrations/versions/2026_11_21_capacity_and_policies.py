"""Capacity of hosts, shares of projects, retention policies, counts of repairs, and compatible releases."""

# Runs while the previous release is still serving: every new column may stay empty or has a default.

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None
serves = "0001"

_KEPT = "finished_at IS NOT NULL AND deleted_at IS NULL AND "
_INDEXES_OF_ENDED = {
    "ix_jobs_finished_at": (["finished_at"], "finished_at IS NOT NULL"),
    "ix_jobs_kept_logs": (["project_id", "finished_at", "seq"], _KEPT + "logs_removed_at IS NULL"),
    "ix_jobs_kept_artifacts": (["project_id", "finished_at", "seq"], _KEPT + "artifacts_removed_at IS NULL"),
}


def _columns() -> dict[str, list[sa.Column]]:
    return {
        "attempts": [
            sa.Column("due_at", sa.DateTime(timezone=True)),
            sa.Column("log_bytes", sa.BigInteger()),
            sa.Column("artifact_bytes", sa.BigInteger()),
        ],
        "jobs": [
            sa.Column("cards", sa.Integer(), server_default="0", nullable=False),
            sa.Column("cpus", sa.Double()),
            sa.Column("memory_mb", sa.Integer()),
            sa.Column("request_id", sa.String(length=64)),
            sa.Column("trace_parent", sa.String(length=64)),
            sa.Column("machine_faults", sa.Integer(), server_default="0", nullable=False),
            sa.Column("logs_removed_at", sa.DateTime(timezone=True)),
            sa.Column("artifacts_removed_at", sa.DateTime(timezone=True)),
        ],
        "projects": [
            sa.Column("max_running", sa.Integer()),
            sa.Column("last_claimed_at", sa.DateTime(timezone=True)),
            sa.Column("keep_logs_days", sa.Integer()),
            sa.Column("keep_artifacts_days", sa.Integer()),
        ],
        "workers": [
            sa.Column("machine_types", sa.JSON(none_as_null=True)),
            sa.Column("cards", sa.JSON(none_as_null=True)),
            sa.Column("cpus", sa.Double()),
            sa.Column("memory_mb", sa.Integer()),
            sa.Column("heard_at", sa.DateTime(timezone=True)),
            sa.Column("drained_at", sa.DateTime(timezone=True)),
        ],
    }


def upgrade() -> None:
    """Apply this migration."""
    op.create_table(
        "schema_info",
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("value", sa.String(length=255), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_schema_info")),
    )
    op.create_table(
        "repairs",
        sa.Column("kind", sa.String(length=64), nullable=False),
        sa.Column("total", sa.BigInteger(), nullable=False),
        sa.Column("last_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("last_worker", sa.String(length=255), nullable=False),
        sa.PrimaryKeyConstraint("kind", name=op.f("pk_repairs")),
    )
    op.create_table(
        "turns",
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("holder", sa.String(length=255), nullable=False),
        sa.Column("until", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_turns")),
    )
    op.create_table(
        "held_cards",
        sa.Column("host", sa.String(length=255), nullable=False),
        sa.Column("card", sa.String(length=64), nullable=False),
        sa.Column("job_id", sa.String(length=16), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_held_cards_job_id_jobs")),
        sa.PrimaryKeyConstraint("host", "card", name=op.f("pk_held_cards")),
    )
    op.create_index(op.f("ix_held_cards_job_id"), "held_cards", ["job_id"])
    op.create_table(
        "removals",
        sa.Column("job_id", sa.String(length=16), nullable=False),
        sa.Column("what", sa.String(length=16), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_removals_job_id_jobs")),
        sa.PrimaryKeyConstraint("job_id", "what", name=op.f("pk_removals")),
    )
    for table, columns in _columns().items():
        for column in columns:
            op.add_column(table, column)
    waiting = sa.text("state = 'queued'")
    op.create_index(
        "ix_jobs_project_queue",
        "jobs",
        ["project_id", sa.text("priority DESC"), "seq"],
        sqlite_where=waiting,
        postgresql_where=waiting,
    )
    for name, (columns, where) in _INDEXES_OF_ENDED.items():
        op.create_index(name, "jobs", columns, sqlite_where=sa.text(where), postgresql_where=sa.text(where))
    op.create_index(
        "ix_jobs_pool",
        "jobs",
        ["machine_type", "backend", "project_id", sa.text("priority DESC"), "seq"],
        sqlite_where=waiting,
        postgresql_where=waiting,
    )
    ran = sa.text("started_at IS NOT NULL AND ended_at IS NOT NULL")
    op.create_index(
        "ix_jobs_history",
        "jobs",
        ["machine_type", "ended_at", "started_at"],
        sqlite_where=ran,
        postgresql_where=ran,
    )


def downgrade() -> None:
    """Revert this migration."""
    for name in ("ix_jobs_history", "ix_jobs_pool", "ix_jobs_project_queue", *_INDEXES_OF_ENDED):
        op.drop_index(name, table_name="jobs")
    for table, columns in _columns().items():
        for column in columns:
            op.drop_column(table, column.name)
    op.drop_table("removals")
    op.drop_table("held_cards")
    op.drop_table("turns")
    op.drop_table("repairs")
    op.drop_table("schema_info")
