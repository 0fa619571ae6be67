"""Models and migrations say the same, on each database, and every step can be taken back."""

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Column, inspect, text

from core.db import migrations, schema_check
from core.db.database import Base
from core.db.models import comparisons, credentials
from core.db.models.jobs import Job
from core.errors import DatabaseOutdated

TABLES = {
    "api_keys",
    "attempts",
    "comparison_jobs",
    "comparisons",
    "events",
    "git_logins",
    "gpu_allocations",
    "host_images",
    "job_logins",
    "jobs",
    "last_metrics",
    "leader_leases",
    "metrics",
    "one_time_tokens",
    "outbox",
    "pending_deletions",
    "port_allocations",
    "port_requests",
    "project_registries",
    "projects",
    "registries",
    "repair_counts",
    "resources",
    "schema_info",
    "secrets",
    "sessions",
    "user_keys",
    "users",
    "workers",
}


def differences(database):
    """Return the operations that `make migration` would write now."""
    on_sqlite = database.is_sqlite

    def compared(item, name, kind, reflected, counterpart):
        del reflected, counterpart
        if kind == "index":
            return not (on_sqlite and name in migrations.expression_indexes())
        return (f"{item.table.name}.{name}" if isinstance(item, Column) else name) not in migrations.retired()

    with database.engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True, "include_object": compared})
        return compare_metadata(context, Base.metadata)


def tables(database):
    return set(inspect(database.engine).get_table_names()) - {"alembic_version"}


def test_models_and_migrations_agree(database):
    assert tables(database) == TABLES == set(Base.metadata.tables)
    assert {credentials.Secret.__tablename__, comparisons.Comparison.__tablename__} <= TABLES
    assert differences(database) == []


def test_the_queue_is_indexed_in_its_order(database):
    if database.is_sqlite:
        query = "SELECT sql FROM sqlite_master WHERE name = 'ix_jobs_queue'"
    else:
        query = "SELECT indexdef FROM pg_indexes WHERE indexname = 'ix_jobs_queue'"
    with database.engine.connect() as connection:
        written = connection.scalar(text(query))
    assert "priority DESC, seq" in written
    assert "queued" in written


def test_every_step_can_be_taken_back_and_forth(empty_database):
    steps = [
        step.revision
        for step in reversed(list(ScriptDirectory.from_config(migrations.configuration()).walk_revisions()))
    ]
    for step in steps:
        migrations.upgrade(empty_database, step)
        migrations.downgrade(empty_database, "-1")
        migrations.upgrade(empty_database, step)
    schema_check.check(empty_database)
    assert differences(empty_database) == []
    migrations.downgrade(empty_database, "base")
    assert tables(empty_database) == set()
    migrations.upgrade(empty_database)
    assert differences(empty_database) == []


def test_migrations_are_one_line_without_forks():
    directory = ScriptDirectory.from_config(migrations.configuration())
    assert len(directory.get_heads()) == 1
    assert len(directory.get_bases()) == 1


def test_a_migration_keeps_what_is_there(database, submit):
    job = submit("python main.py")
    migrations.upgrade(database)
    with database.read() as session:
        assert session.get(Job, job.seq).id == job.id


def test_a_database_without_tables_is_refused_with_what_to_do(empty_database):
    with pytest.raises(DatabaseOutdated, match="gradient-server migrate"):
        schema_check.check(empty_database)


def test_a_database_of_another_release_is_refused(database):
    with database.engine.execution_options(gradient_write=True).begin() as connection:
        command.stamp(migrations.configuration(connection), "base")
    with pytest.raises(DatabaseOutdated, match="empty"):
        schema_check.check(database)
