"""The initial schema."""

import sqlalchemy as sa
from alembic import op

revision = "7edf69dbdf39"
down_revision = None


def _where(condition: str) -> dict[str, sa.TextClause]:
    """Return the arguments of `create_index` that make an index partial, on each database."""
    return {"sqlite_where": sa.text(condition), "postgresql_where": sa.text(condition)}


def upgrade() -> None:
    """Create every table."""
    op.create_table(
        "api_keys",
        sa.Column("id", sa.String(length=16), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("sha256", sa.LargeBinary(length=32), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("last_used_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("revoked_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_api_keys")),
    )
    op.create_table(
        "changes",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("actor", sa.String(length=16), nullable=True),
        sa.Column("kind", sa.String(length=32), nullable=False),
        sa.Column("target", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_changes")),
    )
    op.create_table(
        "host_images",
        sa.Column("host", sa.String(length=255), nullable=False),
        sa.Column("reference", sa.String(length=512), nullable=False),
        sa.PrimaryKeyConstraint("host", "reference", name=op.f("pk_host_images")),
    )
    op.create_index("ix_host_images_reference", "host_images", ["reference"])
    op.create_table(
        "installation",
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("value", sa.String(length=255), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_installation")),
    )
    op.create_table(
        "leader_leases",
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("holder", sa.String(length=255), nullable=False),
        sa.Column("until", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_leader_leases")),
    )
    op.create_table(
        "one_time_tokens",
        sa.Column("sha256", sa.LargeBinary(length=32), nullable=False),
        sa.Column("purpose", sa.String(length=16), nullable=False),
        sa.Column("subject", sa.String(length=16), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("sha256", name=op.f("pk_one_time_tokens")),
    )
    op.create_index("ix_one_time_tokens_expires_at", "one_time_tokens", ["expires_at"])
    op.create_table(
        "outbox",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("kind", sa.String(length=32), nullable=False),
        sa.Column("job_id", sa.String(length=16), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_outbox")),
    )
    op.create_table(
        "project_registries",
        sa.Column("project_id", sa.String(length=16), nullable=False),
        sa.Column("host", sa.String(length=255), nullable=False),
        sa.Column("username", sa.String(length=255), nullable=False),
        sa.Column("sealed", sa.Text(), nullable=False),
        sa.Column("push", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("project_id", "host", name=op.f("pk_project_registries")),
    )
    op.create_table(
        "projects",
        sa.Column("id", sa.String(length=16), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("created_by", sa.String(length=16), nullable=True),
        sa.Column("max_running", sa.Integer(), nullable=True),
        sa.Column("max_stored_mb", sa.Integer(), nullable=True),
        sa.Column("last_claimed_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("keep_logs_days", sa.Integer(), nullable=True),
        sa.Column("keep_artifacts_days", sa.Integer(), nullable=True),
        sa.Column("tags", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("repo_name", sa.String(length=200), nullable=True),
        sa.Column("repo_url", sa.String(length=2000), nullable=True),
        sa.Column("deleted_at", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_projects")),
        sa.UniqueConstraint("name", name=op.f("uq_projects_name")),
    )
    op.create_table(
        "registries",
        sa.Column("host", sa.String(length=255), nullable=False),
        sa.Column("username", sa.String(length=255), nullable=False),
        sa.Column("sealed", sa.Text(), nullable=False),
        sa.Column("push", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("host", name=op.f("pk_registries")),
    )
    op.create_table(
        "repair_counts",
        sa.Column("kind", sa.String(length=64), nullable=False),
        sa.Column("total", sa.BigInteger(), nullable=False),
        sa.Column("last_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("last_worker", sa.String(length=255), nullable=False),
        sa.PrimaryKeyConstraint("kind", name=op.f("pk_repair_counts")),
    )
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
        "users",
        sa.Column("id", sa.String(length=16), nullable=False),
        sa.Column("email", sa.String(length=254), nullable=False),
        sa.Column("password", sa.String(length=255), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_users")),
        sa.UniqueConstraint("email", name=op.f("uq_users_email")),
    )
    op.create_table(
        "worker_tokens",
        sa.Column("worker", sa.String(length=255), nullable=False),
        sa.Column("sha256", sa.LargeBinary(length=32), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("worker", name=op.f("pk_worker_tokens")),
        sa.UniqueConstraint("sha256", name=op.f("uq_worker_tokens_sha256")),
    )
    op.create_table(
        "workers",
        sa.Column("name", sa.String(length=255), nullable=False),
        sa.Column("host", sa.String(length=255), nullable=False),
        sa.Column("boot_id", sa.String(length=64), nullable=False),
        sa.Column("backends", sa.JSON(), nullable=False),
        sa.Column("slots", sa.Integer(), nullable=False),
        sa.Column("machine_types", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("gpus", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("cpus", sa.Double(), nullable=True),
        sa.Column("memory_mb", sa.Integer(), nullable=True),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("seen_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("broker_ping_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("taken_gpus", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("low_disk", sa.Text(), nullable=True),
        sa.Column("drained_at", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_workers")),
    )
    op.create_table(
        "jobs",
        sa.Column("seq", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("id", sa.String(length=16), nullable=False),
        sa.Column("project_id", sa.String(length=16), nullable=False),
        sa.Column("submitted_by", sa.String(length=16), nullable=False),
        sa.Column("parent_id", sa.String(length=16), nullable=True),
        sa.Column("schedule_id", sa.String(length=16), nullable=True),
        sa.Column("idempotency_key", sa.String(length=255), nullable=True),
        sa.Column("request_sha256", sa.String(length=64), nullable=True),
        sa.Column("spec", sa.JSON(), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=True),
        sa.Column("machine_type", sa.String(length=64), nullable=False),
        sa.Column("backend", sa.String(length=32), nullable=False),
        sa.Column("simulated", sa.Boolean(), nullable=False),
        sa.Column("price_per_hour", sa.Double(), nullable=False),
        sa.Column("priority", sa.Integer(), nullable=False),
        sa.Column("max_attempts", sa.Integer(), nullable=False),
        sa.Column("gpus", sa.Integer(), server_default="0", nullable=False),
        sa.Column("cpus", sa.Double(), nullable=True),
        sa.Column("memory_mb", sa.Integer(), nullable=True),
        sa.Column("image", sa.String(length=512), nullable=True),
        sa.Column("dynamic_ports", sa.Integer(), server_default="0", nullable=False),
        sa.Column("request_id", sa.String(length=64), nullable=True),
        sa.Column("trace_parent", sa.String(length=64), nullable=True),
        sa.Column(
            "state",
            sa.Enum(
                "queued",
                "starting",
                "running",
                "finishing",
                "succeeded",
                "failed",
                "cancelled",
                name="jobstate",
                native_enum=False,
                length=16,
            ),
            nullable=False,
        ),
        sa.Column("reason", sa.String(length=32), nullable=True),
        sa.Column("reason_detail", sa.Text(), nullable=True),
        sa.Column("phase", sa.String(length=32), nullable=True),
        sa.Column("phase_detail", sa.Text(), nullable=True),
        sa.Column("exit_code", sa.Integer(), nullable=True),
        sa.Column("image_digest", sa.String(length=592), nullable=True),
        sa.Column("artifacts_state", sa.String(length=16), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("machine_faults", sa.Integer(), server_default="0", nullable=False),
        sa.Column("lease", sa.Integer(), nullable=False),
        sa.Column("worker", sa.String(length=255), nullable=True),
        sa.Column("host", sa.String(length=255), nullable=True),
        sa.Column("handle", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("heartbeat_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("stop_requested_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("array_id", sa.String(length=16), nullable=True),
        sa.Column("array_index", sa.Integer(), nullable=True),
        sa.Column("array_value", sa.Text(), nullable=True),
        sa.Column("array_limit", sa.Integer(), nullable=True),
        sa.Column("run_after", sa.DateTime(timezone=True), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("claimed_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("deleted_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("logs_removed_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("artifacts_removed_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"], name=op.f("fk_jobs_project_id_projects")),
        sa.PrimaryKeyConstraint("seq", name=op.f("pk_jobs")),
        sa.UniqueConstraint("id", name=op.f("uq_jobs_id")),
    )
    op.create_index("ix_jobs_array_id", "jobs", ["array_id", "array_index"], **_where("array_id IS NOT NULL"))
    op.create_index(
        "ix_jobs_array_owned", "jobs", ["array_id"], **_where("state IN ('starting', 'running', 'finishing')")
    )
    op.create_index("ix_jobs_finished_at", "jobs", ["finished_at"], **_where("finished_at IS NOT NULL"))
    op.create_index("ix_jobs_queue", "jobs", [sa.text("priority DESC"), "seq"], **_where("state = 'queued'"))
    op.create_index(
        "ix_jobs_project_queue", "jobs", ["project_id", sa.text("priority DESC"), "seq"], **_where("state = 'queued'")
    )
    op.create_index(
        "ix_jobs_pool",
        "jobs",
        ["machine_type", "backend", "project_id", sa.text("priority DESC"), "seq"],
        **_where("state = 'queued'"),
    )
    op.create_index(
        "ix_jobs_history",
        "jobs",
        ["machine_type", "ended_at", "started_at"],
        **_where("started_at IS NOT NULL AND ended_at IS NOT NULL"),
    )
    op.create_index(
        "ix_jobs_kept_artifacts",
        "jobs",
        ["project_id", "finished_at", "seq"],
        **_where("finished_at IS NOT NULL AND deleted_at IS NULL AND artifacts_removed_at IS NULL"),
    )
    op.create_index(
        "ix_jobs_kept_logs",
        "jobs",
        ["project_id", "finished_at", "seq"],
        **_where("finished_at IS NOT NULL AND deleted_at IS NULL AND logs_removed_at IS NULL"),
    )
    op.create_index("ix_jobs_key_queue", "jobs", ["submitted_by"], **_where("state = 'queued'"))
    op.create_index("ix_jobs_owned", "jobs", ["host"], **_where("state IN ('starting', 'running', 'finishing')"))
    op.create_index("ix_jobs_active", "jobs", ["project_id", "state"], **_where("finished_at IS NULL"))
    op.create_index("ix_jobs_schedule_id_seq", "jobs", ["schedule_id", "seq"], **_where("schedule_id IS NOT NULL"))
    op.create_index(
        "ix_jobs_schedule_active",
        "jobs",
        ["schedule_id"],
        **_where("schedule_id IS NOT NULL AND finished_at IS NULL"),
    )
    op.create_index("ix_jobs_project_id_kept", "jobs", ["project_id"], **_where("deleted_at IS NULL"))
    # Spelled as in the reads, which must not use the index on the state.
    op.create_index("ix_jobs_failed", "jobs", ["finished_at"], **_where("state || '' = 'failed'"))
    op.create_index(
        "ix_jobs_waiting_pool",
        "jobs",
        ["machine_type", "backend", "run_after", "created_at"],
        **_where("state || '' = 'queued'"),
    )
    # SQLite prefers what was created last, where it cannot tell: a machine type, not a state.
    for column in ("project_id", "state", "submitted_by", "name", "machine_type"):
        op.create_index(f"ix_jobs_{column}_seq", "jobs", [column, "seq"])
    op.create_index("uq_jobs_idempotency", "jobs", ["submitted_by", "idempotency_key"], unique=True)
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
    op.create_index("ix_sessions_expires_at", "sessions", ["expires_at"])
    op.create_index("ix_sessions_key_id", "sessions", ["key_id"])
    op.create_table(
        "user_keys",
        sa.Column("key_id", sa.String(length=16), nullable=False),
        sa.Column("user_id", sa.String(length=16), nullable=False),
        sa.ForeignKeyConstraint(["key_id"], ["api_keys.id"], name=op.f("fk_user_keys_key_id_api_keys")),
        sa.PrimaryKeyConstraint("key_id", name=op.f("pk_user_keys")),
    )
    op.create_index("ix_user_keys_user_id", "user_keys", ["user_id"])
    op.create_table(
        "attempts",
        sa.Column("job_id", sa.String(length=16), nullable=False),
        sa.Column("attempt", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("worker", sa.String(length=255), nullable=False),
        sa.Column("host", sa.String(length=255), nullable=False),
        sa.Column("eligible_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("claimed_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("exit_code", sa.Integer(), nullable=True),
        sa.Column("image_digest", sa.String(length=592), nullable=True),
        sa.Column("reason", sa.String(length=32), nullable=True),
        sa.Column("reason_detail", sa.Text(), nullable=True),
        sa.Column("log_bytes", sa.BigInteger(), nullable=True),
        sa.Column("artifact_bytes", sa.BigInteger(), nullable=True),
        sa.Column("gpus", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("tpu", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("sampled_seconds", sa.Double(), nullable=True),
        sa.Column("peak_memory_bytes", sa.BigInteger(), nullable=True),
        sa.Column("peak_cpu_percent", sa.Double(), nullable=True),
        sa.Column("mean_cpu_percent", sa.Double(), nullable=True),
        sa.Column("peak_gpu_memory_bytes", sa.BigInteger(), nullable=True),
        sa.Column("peak_gpu_percent", sa.Double(), nullable=True),
        sa.Column("mean_gpu_percent", sa.Double(), nullable=True),
        sa.Column("mean_host_cpu_percent", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_attempts_job_id_jobs")),
        sa.PrimaryKeyConstraint("job_id", "attempt", name=op.f("pk_attempts")),
    )
    op.create_table(
        "events",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("job_id", sa.String(length=16), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("kind", sa.String(length=32), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("lease", sa.Integer(), nullable=False),
        sa.Column("from_state", sa.String(length=16), nullable=True),
        sa.Column("to_state", sa.String(length=16), nullable=True),
        sa.Column("phase", sa.String(length=32), nullable=True),
        sa.Column("reason", sa.String(length=32), nullable=True),
        sa.Column("detail", sa.Text(), nullable=True),
        sa.Column("actor", sa.String(length=16), nullable=True),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_events_job_id_jobs")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_events")),
    )
    op.create_index("ix_events_job", "events", ["job_id", "id"])
    op.create_table(
        "git_logins",
        sa.Column("job_id", sa.String(length=16), nullable=False),
        sa.Column("sealed", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_git_logins_job_id_jobs")),
        sa.PrimaryKeyConstraint("job_id", name=op.f("pk_git_logins")),
    )
    op.create_table(
        "gpu_allocations",
        sa.Column("host", sa.String(length=255), nullable=False),
        sa.Column("gpu", sa.String(length=64), nullable=False),
        sa.Column("job_id", sa.String(length=16), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_gpu_allocations_job_id_jobs")),
        sa.PrimaryKeyConstraint("host", "gpu", name=op.f("pk_gpu_allocations")),
    )
    op.create_index("ix_gpu_allocations_job_id", "gpu_allocations", ["job_id"])
    op.create_table(
        "job_logins",
        sa.Column("job_id", sa.String(length=16), nullable=False),
        sa.Column("sealed", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_job_logins_job_id_jobs")),
        sa.PrimaryKeyConstraint("job_id", name=op.f("pk_job_logins")),
    )
    op.create_table(
        "metrics",
        sa.Column("job_id", sa.String(length=16), nullable=False),
        sa.Column("attempt", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("source", sa.String(length=16), nullable=False),
        sa.Column("offset", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("step", sa.Double(), nullable=True),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("values", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_metrics_job_id_jobs")),
        sa.PrimaryKeyConstraint("job_id", "attempt", "source", "offset", name=op.f("pk_metrics")),
    )
    op.create_table(
        "pending_deletions",
        sa.Column("job_id", sa.String(length=16), nullable=False),
        sa.Column("what", sa.String(length=16), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_pending_deletions_job_id_jobs")),
        sa.PrimaryKeyConstraint("job_id", "what", name=op.f("pk_pending_deletions")),
    )
    op.create_table(
        "port_allocations",
        sa.Column("host", sa.String(length=255), nullable=False),
        sa.Column("port", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("job_id", sa.String(length=16), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("internal", sa.Integer(), nullable=False),
        sa.Column("address", sa.String(length=255), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_port_allocations_job_id_jobs")),
        sa.PrimaryKeyConstraint("host", "port", name=op.f("pk_port_allocations")),
    )
    op.create_index("ix_port_allocations_job_id", "port_allocations", ["job_id"])
    op.create_table(
        "port_requests",
        sa.Column("port", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("job_id", sa.String(length=16), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_port_requests_job_id_jobs")),
        sa.PrimaryKeyConstraint("port", "job_id", name=op.f("pk_port_requests")),
    )
    op.create_index("ix_port_requests_job_id", "port_requests", ["job_id"])
    op.create_table(
        "resources",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("name", sa.String(length=255), nullable=False),
        sa.Column("job_id", sa.String(length=16), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("host", sa.String(length=255), nullable=False),
        sa.Column("state", sa.String(length=32), nullable=False),
        sa.Column("health", sa.String(length=32), nullable=True),
        sa.Column("detail", sa.Text(), nullable=True),
        sa.Column("operation", sa.String(length=255), nullable=True),
        sa.Column("intended_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("seen_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("billed_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("deleting_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("gone_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("billed_until", sa.DateTime(timezone=True), nullable=True),
        sa.Column("price_per_hour", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_resources_job_id_jobs")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_resources")),
    )
    op.create_index("ix_resources_job", "resources", ["job_id", "attempt"])
    op.create_index("uq_resources_open", "resources", ["name"], unique=True, **_where("gone_at IS NULL"))
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
        sa.Column("imported_from", sa.String(length=2000), nullable=True),
        sa.Column("imported_jobs", sa.Integer(), nullable=True),
        sa.Column("imported_program", sa.String(length=64), nullable=True),
        sa.Column("imported_file", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"], name=op.f("fk_comparisons_project_id_projects")),
        sa.PrimaryKeyConstraint("seq", name=op.f("pk_comparisons")),
        sa.UniqueConstraint("id", name=op.f("uq_comparisons_id")),
    )
    op.create_index("ix_comparisons_project_id_seq", "comparisons", ["project_id", "seq"], unique=False)
    op.create_index("uq_comparisons_idempotency", "comparisons", ["submitted_by", "idempotency_key"], unique=True)
    op.create_table(
        "schedules",
        sa.Column("seq", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("id", sa.String(length=16), nullable=False),
        sa.Column("project_id", sa.String(length=16), nullable=False),
        sa.Column("submitted_by", sa.String(length=16), nullable=False),
        sa.Column("idempotency_key", sa.String(length=255), nullable=True),
        sa.Column("request_sha256", sa.String(length=64), nullable=True),
        sa.Column("cron", sa.String(length=100), nullable=False),
        sa.Column("timezone", sa.String(length=64), nullable=False),
        sa.Column("on_miss", sa.String(length=8), nullable=False),
        sa.Column("on_overlap", sa.String(length=8), nullable=False),
        sa.Column("spec", sa.JSON(), nullable=False),
        sa.Column("sealed", sa.Text(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("next_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("refusal", sa.Text(), nullable=True),
        sa.Column("refused_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"], name=op.f("fk_schedules_project_id_projects")),
        sa.PrimaryKeyConstraint("seq", name=op.f("pk_schedules")),
        sa.UniqueConstraint("id", name=op.f("uq_schedules_id")),
    )
    op.create_index("ix_schedules_next_at", "schedules", ["next_at"], unique=False)
    op.create_index("uq_schedules_idempotency", "schedules", ["submitted_by", "idempotency_key"], unique=True)
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
    op.create_table(
        "last_metrics",
        sa.Column("job_id", sa.String(length=16), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("value", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_last_metrics_job_id_jobs")),
        sa.PrimaryKeyConstraint("job_id", "name", name=op.f("pk_last_metrics")),
    )
    op.create_index("ix_last_metrics_name_value", "last_metrics", ["name", "value"], unique=False)
    op.create_table(
        "job_params",
        sa.Column("job_id", sa.String(length=16), nullable=False),
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("number", sa.Double(), nullable=True),
        sa.Column("text", sa.String(length=500), nullable=True),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_job_params_job_id_jobs")),
        sa.PrimaryKeyConstraint("job_id", "name", name=op.f("pk_job_params")),
    )
    op.create_index("ix_job_params_name_number", "job_params", ["name", "number"], unique=False)
    op.create_index("ix_job_params_name_text", "job_params", ["name", "text"], unique=False)
    op.create_table(
        "job_dependencies",
        sa.Column("job_id", sa.String(length=16), nullable=False),
        sa.Column("after_id", sa.String(length=16), nullable=False),
        sa.Column("must_succeed", sa.Boolean(), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_job_dependencies_job_id_jobs")),
        sa.PrimaryKeyConstraint("job_id", "after_id", name=op.f("pk_job_dependencies")),
    )
    op.create_index("ix_job_dependencies_after_id", "job_dependencies", ["after_id"], unique=False)
