"""The schema: what the models say is what the migrations make, and a database of another version is left alone."""

import hashlib
import threading
from contextlib import contextmanager
from unittest import mock

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import inspect, text
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.schema import CreateIndex, CreateTable
from support.deployment import Deployment, wait_until

from core.db import migrations, schema_check
from core.db.database import Base, Database
from core.db.models.jobs import Job
from core.db.schema_check import SchemaStatus
from core.errors import SchemaMismatch, StoreUnavailable
from gradient_server.checks import database as database_checks
from gradient_server.checks.finding import Status

HEAD = schema_check.revisions()[-1]
MIGRATION = """\
import sqlalchemy as sa
from alembic import op
revision = "later"
down_revision = {head!r}
def upgrade():
    {body}
"""


@pytest.fixture
def later_version(tmp_path):
    """A function: act as the version after this one, whose migration has this body, while the block lasts."""

    @contextmanager
    def act(body):
        folder = tmp_path / "later"
        if not folder.exists():
            (folder / "versions").mkdir(parents=True)
            for file in [*schema_check.MIGRATIONS.glob("*.*"), *schema_check.MIGRATIONS.glob("versions/*.py")]:
                (folder / file.relative_to(schema_check.MIGRATIONS)).write_bytes(file.read_bytes())
            (folder / "versions" / "later.py").write_text(MIGRATION.format(head=HEAD, body=body))
        with mock.patch.object(schema_check, "MIGRATIONS", folder):
            yield

    return act


def set_revision(database, revision):
    with database.engine.execution_options(gradient_write=True).begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = :revision"), {"revision": revision})


def read_indexes(database):
    """Return the definition of every index by name, those over expressions too."""
    if database.is_sqlite:
        query = "SELECT name, sql FROM sqlite_master WHERE type = 'index' AND sql IS NOT NULL"
    else:
        query = "SELECT indexname, indexdef FROM pg_indexes WHERE schemaname = 'public'"
    with database.engine.connect() as connection:
        definitions = {name: " ".join(definition.split()) for name, definition in connection.execute(text(query))}
    return {name: definition for name, definition in definitions.items() if "alembic" not in name}


def differences(database):
    """Return the operations that `make migration` would write now."""

    def compared(_item, name, kind, *_):
        return not (kind == "index" and database.is_sqlite and name in migrations.expression_indexes())

    with database.engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True, "include_object": compared})
        return compare_metadata(context, Base.metadata)


def test_models_and_migrations_agree(database):
    assert set(inspect(database.engine).get_table_names()) - {"alembic_version"} == set(Base.metadata.tables)
    assert differences(database) == []


def test_the_initial_migration_is_named_by_the_digest_of_its_tables(empty_database):
    """A database of another commit's tables is refused at the start, and not met by a missing column."""
    migrations.upgrade(empty_database)  # imports all models
    statements = [
        " ".join(str(create.compile(dialect=dialect)).split())
        for dialect in (sqlite.dialect(), postgresql.dialect())
        for table in Base.metadata.sorted_tables
        for create in (CreateTable(table), *map(CreateIndex, sorted(table.indexes, key=lambda index: index.name)))
    ]
    digest = hashlib.sha256("\n".join(statements).encode()).hexdigest()[:12]
    assert schema_check.revisions()[0] == digest, f'write into the initial migration: revision = "{digest}"'


def test_jobs_are_claimed_by_an_index_in_descending_priority(empty_database):
    migrations.upgrade(empty_database)
    assert "priority DESC, seq" in read_indexes(empty_database)["ix_jobs_queue"]


def test_migrations_are_one_line_without_forks():
    directory = ScriptDirectory.from_config(migrations.configuration())
    assert len(directory.get_heads()) == 1
    assert len(directory.get_bases()) == 1
    assert [step.revision for step in directory.walk_revisions()][::-1] == schema_check.revisions()


def test_a_migration_keeps_what_is_there(database, submit, later_version):
    job = submit("python main.py")
    before = read_indexes(database)
    with later_version('op.add_column("jobs", sa.Column("pool", sa.String(64)))'):
        with pytest.raises(SchemaMismatch, match=rf"is {HEAD}.*needs later.*backup.*gradient-server migrate"):
            schema_check.check(database)
        migrations.upgrade(database)
        schema_check.check(database)
    with database.read() as session:
        assert session.get(Job, job.seq).id == job.id
    assert read_indexes(database) == before
    assert schema_check.get_state(database).status is SchemaStatus.UNKNOWN


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_a_table_is_rebuilt_under_the_rows_that_refer_to_it(database, submit, later_version):
    """SQLite cannot relax a column in place; other tables' foreign keys must not hold the old table fast."""
    job = submit("python main.py")
    body = """with op.batch_alter_table("projects") as batch:
        batch.alter_column("name", existing_type=sa.String(200), nullable=True)"""
    with later_version(body):
        migrations.upgrade(database)
    columns = {column["name"]: column for column in inspect(database.engine).get_columns("projects")}
    assert columns["name"]["nullable"]
    with database.read() as session:
        assert session.get(Job, job.seq).project_id
        assert session.scalar(text("PRAGMA foreign_keys")) == 1


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_a_migration_that_leaves_a_reference_to_nothing_changes_nothing(database, submit, later_version):
    job = submit("python main.py")
    with later_version('op.execute("DELETE FROM projects")'), pytest.raises(StoreUnavailable, match="a missing row"):
        migrations.upgrade(database)
    schema_check.check(database)
    with database.read() as session:
        assert session.scalar(text("SELECT name FROM projects WHERE id = :id"), {"id": job.project_id}) == "default"


def test_a_new_migration_adds_what_the_models_have(sqlite_database, later_version):
    with later_version('op.drop_table("repair_counts")'):
        migrations.upgrade(sqlite_database)
        with sqlite_database.engine.begin() as connection:
            command.revision(migrations.configuration(connection), message="nothing new", autogenerate=True)
        (written,) = (schema_check.MIGRATIONS / "versions").glob("*_nothing_new.py")
        created = [line for line in written.read_text().splitlines() if "op." in line]
        assert created[0].endswith("op.create_table('repair_counts',")
        assert schema_check.revisions()[-2] == "later"
        migrations.upgrade(sqlite_database)
    assert differences(sqlite_database) == []


# ---- Databases of other versions


@pytest.mark.parametrize("found", ["0007", "9999"], ids=["before the first release", "later"])
def test_a_schema_that_this_version_does_not_know_is_refused_and_left_alone(database, found):
    set_revision(database, found)
    before = read_indexes(database)
    for refused in (schema_check.check, migrations.upgrade):
        with pytest.raises(SchemaMismatch, match=f"is {found}, which is unknown to this version.*an empty database"):
            refused(database)
    assert read_indexes(database) == before
    assert schema_check.get_state(database).found == found


def test_everything_refuses_such_a_database_in_one_sentence(tmp_path):
    service = Deployment(tmp_path / "home", GRADIENT_DATABASE__URL=f"sqlite:///{tmp_path / 'gradient.db'}")
    service.migrate()
    database = Database(service.database_url)
    set_revision(database, "0007")
    database.close()
    for command_line in (["up", "--port", "0"], ["api", "--port", "0"], ["worker"], ["migrate"], ["keys", "list"]):
        refused = service.start(*command_line)
        assert refused.wait() == 1, command_line
        assert refused.read_log().startswith("error: The database's schema is 0007"), refused.read_log()
        assert "Traceback" not in refused.read_log()


def test_a_database_without_tables_is_refused_with_what_to_do(empty_database):
    with pytest.raises(SchemaMismatch, match="gradient-server migrate"):
        schema_check.check(empty_database)


def test_the_doctor_tells_the_cases_apart(empty_database, later_version):
    def finds():
        finding = database_checks.migrations(empty_database)
        return finding.status, finding.message, finding.fix or ""

    status, message, fix = finds()
    assert (status, "empty" in message, "gradient-server migrate" in fix) == (Status.PROBLEM, True, True)
    migrations.upgrade(empty_database)
    assert finds() == (Status.OK, "The schema matches this version.", "")
    with later_version("pass"):
        status, message, fix = finds()
        assert (status, HEAD in message, "gradient-server migrate" in fix) == (Status.PROBLEM, True, True)
        migrations.upgrade(empty_database)
    status, message, fix = finds()
    assert (status, "is unknown" in message, "Install the version" in fix) == (Status.PROBLEM, True, True)


# ---- Several at once, on PostgreSQL


@pytest.fixture
def postgres_database(postgres):
    database = Database(postgres.new_database())
    yield database
    database.close()


def count_waiting(database, kind):
    with database.engine.connect() as connection:
        query = "SELECT count(*) FROM pg_locks WHERE NOT granted AND locktype = :kind"
        return connection.scalar(text(query), {"kind": kind})


def test_upgrades_at_once_take_turns(postgres_database):
    threads = [threading.Thread(target=migrations.upgrade, args=[postgres_database]) for _ in range(3)]
    with postgres_database.engine.begin() as gate:
        gate.execute(text(f"SELECT pg_advisory_xact_lock({migrations.ADVISORY_LOCK})"))
        for thread in threads:
            thread.start()
        wait_until(lambda: count_waiting(postgres_database, "advisory") == 3, "three upgrades to wait")
    for thread in threads:
        thread.join(60)
    schema_check.check(postgres_database)


def test_a_table_that_stays_locked_is_told(postgres_database, monkeypatch, later_version):
    migrations.upgrade(postgres_database)
    monkeypatch.setattr(migrations, "LOCK_SECONDS", 1)
    with (
        postgres_database.engine.begin() as reader,
        later_version('op.add_column("jobs", sa.Column("pool", sa.String(64)))'),
    ):
        reader.execute(text("SELECT 1 FROM jobs"))
        with pytest.raises(StoreUnavailable, match="kept a table locked"):
            migrations.upgrade(postgres_database)
    schema_check.check(postgres_database)
