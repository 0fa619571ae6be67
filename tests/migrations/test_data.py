"""Data in migrations: every upgrade and every downgrade keeps rows and indexes as they are."""

import pytest
from sqlalchemy import func, select, text
from support.releases import (
    COMPATIBLE_STEP,
    HEAD_REVISION,
    NEXT_REVISION,
    REVISIONS,
    ReleaseStep,
    act_as_release,
    describe_schema,
    insert_rows,
    insert_two_rows,
    make_later_release,
    read_indexes,
    read_rows,
    reflect_tables,
)

from core.db import migrations, schema_check
from core.db.database import Base, Database
from core.db.models.jobs import Job


def known_at_both(database, tables):
    """Of these tables and columns those that are there now."""
    now = describe_schema(database)
    return {
        name: told | {"columns": told["columns"].keys() & now[name]["columns"].keys()}
        for name, told in tables.items()
        if name in now
    }


def models():
    return [mapper.class_ for mapper in Base.registry.mappers if mapper.class_ is not schema_check.SchemaInfo]


@pytest.mark.parametrize("start", REVISIONS)
def test_rows_go_through_every_step_forward_and_back(empty_database, start, tmp_path):
    migrations.upgrade(empty_database, start)
    insert_rows(empty_database)
    tables, expected_indexes = describe_schema(empty_database), {start: read_indexes(empty_database)}
    rows = read_rows(empty_database, tables)
    assert {table: len(there) for table, there in rows.items()} == dict.fromkeys(tables, 2)
    later = [*REVISIONS[REVISIONS.index(start) + 1 :], NEXT_REVISION]
    with act_as_release(make_later_release(tmp_path / "later", COMPATIBLE_STEP)):
        for revision in later:
            migrations.upgrade(empty_database, revision)
            expected_indexes[revision] = read_indexes(empty_database)
            assert read_rows(empty_database, tables) == rows
        with empty_database.read() as session:
            for model in models():  # as this release reads them
                assert len(session.scalars(select(model)).all()) == (2 if model.__tablename__ in tables else 0)
        for revision in reversed([start, *later][:-1]):
            migrations.downgrade(empty_database, revision)
            assert read_rows(empty_database, tables) == rows
            assert read_indexes(empty_database) == expected_indexes[revision]
        migrations.upgrade(empty_database)
    assert read_rows(empty_database, tables) == rows
    assert read_indexes(empty_database) == expected_indexes[NEXT_REVISION]


@pytest.mark.parametrize("back", REVISIONS)
def test_the_way_back_keeps_what_the_older_release_knows(empty_database, back, tmp_path):
    with act_as_release(make_later_release(tmp_path / "later", COMPATIBLE_STEP)):
        migrations.upgrade(empty_database)
        insert_rows(empty_database)
        before = describe_schema(empty_database)
        everything = read_rows(empty_database, before)
        migrations.downgrade(empty_database, back)
        kept = known_at_both(empty_database, before)
        assert kept.keys() < before.keys()
        rows = read_rows(empty_database, kept)
        migrations.upgrade(empty_database)
    assert read_rows(empty_database, kept) == rows
    assert {table: len(there) for table, there in rows.items()} == dict.fromkeys(kept, 2)
    assert rows["outbox"] == everything["outbox"]


def test_the_indexes_are_those_of_the_models(empty_database, tmp_path, request):
    migrations.upgrade(empty_database)
    url = (
        f"sqlite:///{tmp_path / 'models.db'}"
        if empty_database.is_sqlite
        else request.getfixturevalue("postgres").new_database()
    )
    made = Database(url)
    Base.metadata.create_all(made.engine)
    own = {name: definition for name, definition in read_indexes(empty_database).items() if "alembic" not in name}
    assert own == read_indexes(made)
    assert {"ix_jobs_queue", "ix_jobs_project_queue", "ix_jobs_owned"} <= own.keys()
    made.close()


@pytest.mark.parametrize("old", REVISIONS[REVISIONS.index(migrations.list_migrations()[-1].module.serves) :])
def test_what_a_served_release_inserts_is_taken(empty_database, old):
    """With the columns that it knows, and with no more of them than it must fill."""
    migrations.upgrade(empty_database, old)
    tables = reflect_tables(empty_database)
    migrations.upgrade(empty_database)
    insert_two_rows(empty_database, *tables)
    with empty_database.read() as session:
        for model in models():
            count = session.scalar(select(func.count()).select_from(model))
            assert count == (2 if model.__tablename__ in {table.name for table in tables} else 0)
        _, bare = session.scalars(select(Job).order_by(Job.seq))
    assert (bare.gpus, bare.machine_faults, bare.name) == (0, 0, None)


def test_a_table_is_built_anew_under_the_rows_that_refer_to_it(sqlite_database, tmp_path):
    """SQLite cannot relax a column in place; other tables' foreign keys must not hold the old table fast."""
    insert_rows(sqlite_database)
    tables = describe_schema(sqlite_database)
    rows = read_rows(sqlite_database, tables)
    body = """
    with op.batch_alter_table("projects") as batch:
        batch.alter_column("name", existing_type=sa.String(200), nullable=True)
    """
    with act_as_release(make_later_release(tmp_path / "later", ReleaseStep(body))):
        migrations.upgrade(sqlite_database)
    assert describe_schema(sqlite_database)["projects"]["columns"]["name"] == ("VARCHAR(200)", True, False)
    assert read_rows(sqlite_database, tables) == rows
    with sqlite_database.read() as session:
        assert session.scalar(text("PRAGMA foreign_keys")) == 1


def test_a_migration_that_leaves_a_reference_to_nothing_changes_nothing(sqlite_database, tmp_path):
    insert_rows(sqlite_database)
    rows = read_rows(sqlite_database, describe_schema(sqlite_database))
    with (
        act_as_release(make_later_release(tmp_path / "later", ReleaseStep('op.execute("DELETE FROM projects")'))),
        pytest.raises(Exception, match="refers to a missing row"),
    ):
        migrations.upgrade(sqlite_database)
    assert read_rows(sqlite_database, describe_schema(sqlite_database)) == rows
    assert schema_check.check(sqlite_database).found == HEAD_REVISION
