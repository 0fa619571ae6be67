"""Data in migrations: every upgrade and every downgrade keeps rows and indexes as they are."""

import pytest
from sqlalchemy import func, select, text
from support.releases import (
    HARMLESS,
    HEAD,
    NEXT,
    REVISIONS,
    Step,
    content,
    described,
    fill,
    indexes,
    insert_twice,
    later_release,
    release,
    tables_of,
)

from core.db import migrations, schema
from core.db.database import Base, Database
from core.db.models.jobs import Job


def known_at_both(database, tables):
    """Of these tables and columns those that are there now."""
    now = described(database)
    return {
        name: told | {"columns": told["columns"].keys() & now[name]["columns"].keys()}
        for name, told in tables.items()
        if name in now
    }


def models():
    return [mapper.class_ for mapper in Base.registry.mappers if mapper.class_ is not schema.SchemaInfo]


@pytest.mark.parametrize("start", REVISIONS)
def test_rows_go_through_every_step_forward_and_back(empty, start, tmp_path):
    migrations.upgrade(empty, start)
    fill(empty)
    tables, expected_indexes = described(empty), {start: indexes(empty)}
    rows = content(empty, tables)
    assert {table: len(there) for table, there in rows.items()} == dict.fromkeys(tables, 2)
    later = [*REVISIONS[REVISIONS.index(start) + 1 :], NEXT]
    with release(later_release(tmp_path / "later", HARMLESS)):
        for revision in later:
            migrations.upgrade(empty, revision)
            expected_indexes[revision] = indexes(empty)
            assert content(empty, tables) == rows
        with empty.read() as session:
            for model in models():  # as this release reads them
                assert len(session.scalars(select(model)).all()) == (2 if model.__tablename__ in tables else 0)
        for revision in reversed([start, *later][:-1]):
            migrations.downgrade(empty, revision)
            assert content(empty, tables) == rows
            assert indexes(empty) == expected_indexes[revision]
        migrations.upgrade(empty)
    assert content(empty, tables) == rows
    assert indexes(empty) == expected_indexes[NEXT]


@pytest.mark.parametrize("back", REVISIONS)
def test_the_way_back_keeps_what_the_older_release_knows(empty, back, tmp_path):
    with release(later_release(tmp_path / "later", HARMLESS)):
        migrations.upgrade(empty)
        fill(empty)
        before = described(empty)
        everything = content(empty, before)
        migrations.downgrade(empty, back)
        kept = known_at_both(empty, before)
        assert kept.keys() < before.keys()
        rows = content(empty, kept)
        migrations.upgrade(empty)
    assert content(empty, kept) == rows
    assert {table: len(there) for table, there in rows.items()} == dict.fromkeys(kept, 2)
    assert rows["outbox"] == everything["outbox"]


def test_the_indexes_are_those_of_the_models(empty, tmp_path, request):
    migrations.upgrade(empty)
    url = (
        f"sqlite:///{tmp_path / 'models.db'}" if empty.is_sqlite else request.getfixturevalue("postgres").new_database()
    )
    made = Database(url)
    Base.metadata.create_all(made.engine)
    own = {name: definition for name, definition in indexes(empty).items() if "alembic" not in name}
    assert own == indexes(made)
    assert {"ix_jobs_queue", "ix_jobs_project_queue", "ix_jobs_owned"} <= own.keys()
    made.close()


@pytest.mark.parametrize("old", REVISIONS[REVISIONS.index(migrations.list_migrations()[-1].module.serves) :])
def test_what_a_served_release_inserts_is_taken(empty, old):
    """With the columns that it knows, and with no more of them than it must fill."""
    migrations.upgrade(empty, old)
    tables = tables_of(empty)
    migrations.upgrade(empty)
    for table in tables:
        insert_twice(empty, table)
    with empty.read() as session:
        for model in models():
            count = session.scalar(select(func.count()).select_from(model))
            assert count == (2 if model.__tablename__ in {table.name for table in tables} else 0)
        _, bare = session.scalars(select(Job).order_by(Job.seq))
    assert (bare.gpus, bare.machine_faults, bare.name) == (0, 0, None)


def test_a_table_is_built_anew_under_the_rows_that_refer_to_it(sqlite_database, tmp_path):
    """SQLite cannot relax a column in place; other tables' foreign keys must not hold the old table fast."""
    fill(sqlite_database)
    tables = described(sqlite_database)
    rows = content(sqlite_database, tables)
    body = """
    with op.batch_alter_table("projects") as batch:
        batch.alter_column("name", existing_type=sa.String(200), nullable=True)
    """
    with release(later_release(tmp_path / "later", Step(body))):
        migrations.upgrade(sqlite_database)
    assert described(sqlite_database)["projects"]["columns"]["name"] == ("VARCHAR(200)", True, False)
    assert content(sqlite_database, tables) == rows
    with sqlite_database.read() as session:
        assert session.scalar(text("PRAGMA foreign_keys")) == 1


def test_a_migration_that_leaves_a_reference_to_nothing_changes_nothing(sqlite_database, tmp_path):
    fill(sqlite_database)
    rows = content(sqlite_database, described(sqlite_database))
    with (
        release(later_release(tmp_path / "later", Step('op.execute("DELETE FROM projects")'))),
        pytest.raises(Exception, match="refers to none"),
    ):
        migrations.upgrade(sqlite_database)
    assert content(sqlite_database, described(sqlite_database)) == rows
    assert schema.check(sqlite_database).found == HEAD
