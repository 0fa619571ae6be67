"""Other releases than this one: folders of migrations that end earlier, or go on; and rows to carry through them."""

import shutil
import textwrap
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple
from unittest import mock

from sqlalchemy import JSON, BigInteger, MetaData, inspect, text

from core.db import migrations, schema_check

MIGRATIONS = schema_check.MIGRATIONS
REVISIONS = [step.revision for step in migrations.list_migrations()]
HEAD_REVISION = REVISIONS[-1]
NEXT_REVISION = f"{int(HEAD_REVISION) + 1:04d}"

_SAMPLE_TIME = datetime(2026, 1, 2, 3, 4, 5, 678900, tzinfo=UTC)
_SAMPLE_JSON = '{"übung": [1, null, 1.5, "\\u2603", true], "deep": {"er": {}}}'
_FIXED_VALUES = {"state": "queued"}
_SCHEMA_TABLES = {"alembic_version", "schema_info"}


@contextmanager
def act_as_release(folder: Path):
    """Act as the release of these migrations while the block lasts."""
    with mock.patch.object(schema_check, "MIGRATIONS", folder):
        yield


class ReleaseStep(NamedTuple):
    """A migration of a later release."""

    body: str
    """Of its `upgrade()`."""
    serves: str = HEAD_REVISION
    retires: tuple[str, ...] = ()
    downgrade: str = "pass"
    """Of its `downgrade()`."""


def make_later_release(folder: Path, *later: ReleaseStep) -> Path:
    """This release's migrations, and further ones."""
    shutil.copytree(MIGRATIONS, folder)
    for number, (body, serves, retires, back) in enumerate(later, int(NEXT_REVISION)):
        (folder / "versions" / f"{number:04d}.py").write_text(
            f"import sqlalchemy as sa\nfrom alembic import op\n"
            f"revision = {f'{number:04d}'!r}\ndown_revision = {f'{number - 1:04d}'!r}\n"
            f"serves = {serves!r}\nretires = {retires!r}\n"
            f"def upgrade():\n{textwrap.indent(textwrap.dedent(body), '    ')}\n"
            f"def downgrade():\n{textwrap.indent(textwrap.dedent(back), '    ')}\n"
        )
    return folder


COMPATIBLE_STEP = ReleaseStep(
    """
    op.add_column("jobs", sa.Column("pool", sa.String(64)))
    op.add_column("attempts", sa.Column("restarts", sa.Integer(), server_default="0", nullable=False))
    op.create_table("budgets", sa.Column("project_id", sa.String(16), sa.ForeignKey("projects.id"), primary_key=True))
    op.create_index("ix_jobs_pool_seq", "jobs", ["pool", "seq"])
    """,
    downgrade="""
    op.drop_index("ix_jobs_pool_seq", "jobs")
    op.drop_table("budgets")
    op.drop_column("attempts", "restarts")
    op.drop_column("jobs", "pool")
    """,
)
"""Adds to the schema what every release that is served can do without."""


# ---- Rows


def insert_rows(database):
    """Two rows in every table that is there, by plain SQL."""
    insert_two_rows(database, *reflect_tables(database))


def insert_two_rows(database, *tables):
    """For each table a row with all its columns, and one with no more than it must have; in one transaction."""
    with database.engine.execution_options(gradient_write=True).begin() as connection:
        for table in tables:
            _insert(database, connection, table, 1, [it for it in table.columns if not _is_autoincrement(it)])
            _insert(database, connection, table, 2, [it for it in table.columns if _is_required(it)])


def _insert(database, connection, table, number, columns):
    names = [column.name for column in columns]
    into = ", ".join(f'"{name}"' for name in names)
    values = ", ".join(f":{name}" for name in names)
    statement = text(f'INSERT INTO "{table.name}" ({into}) VALUES ({values})')  # noqa: S608 - our own names
    connection.execute(statement, {column.name: _sample_value(database, column, number) for column in columns})


def read_rows(database, tables):
    """Read all rows of these tables (`described` gives them), as the database's driver returns them."""
    found = {}
    with database.engine.connect() as connection:
        for table, description in tables.items():
            columns = ", ".join(f'"{name}"' for name in sorted(description["columns"]))
            keys = ", ".join(f'"{name}"' for name in description["key"])
            query = text(f'SELECT {columns} FROM "{table}" ORDER BY {keys}')  # noqa: S608 - our own names
            found[table] = [tuple(row) for row in connection.execute(query)]
    return found


def reflect_tables(database):
    """The tables that are there, as SQLAlchemy sees them, but those about the schema itself."""
    metadata = MetaData()
    metadata.reflect(database.engine)
    return [table for table in metadata.sorted_tables if table.name not in _SCHEMA_TABLES]


def _is_autoincrement(column):
    """Return whether the database numbers the column by itself."""
    alone = len(column.table.primary_key) == 1 and column.primary_key
    return alone and column.type.python_type is int


def _is_required(column):
    return not (column.nullable or column.server_default or _is_autoincrement(column))


def _sample_value(database, column, number):
    kind = column.type.python_type
    if kind is str:
        named = next((key.column.name for key in column.foreign_keys), column.name)
        return _FIXED_VALUES.get(column.name, f"{named}-{number}"[: column.type.length])
    if kind is datetime:  # as our own code writes it
        return _SAMPLE_TIME.strftime("%Y-%m-%d %H:%M:%S.%f") + ("" if database.is_sqlite else "+00:00")
    if kind is int:
        return number + (2**40 if isinstance(column.type, BigInteger) else 0)
    if isinstance(column.type, JSON):
        return _SAMPLE_JSON
    return {float: 1.1 * number, bool: number % 2 == 0, bytes: bytes(range(number, number + 32))}[kind]


# ---- The schema


def describe_schema(database):
    """Every table but those about the schema itself: its columns, its key, what restricts its rows."""
    inspector = inspect(database.engine)
    keys, uniques, indexes, checks, references, columns = (  # of all tables at once: few queries
        {table: found for (_schema, table), found in read().items()}
        for read in (
            inspector.get_multi_pk_constraint,
            inspector.get_multi_unique_constraints,
            inspector.get_multi_indexes,
            inspector.get_multi_check_constraints,
            inspector.get_multi_foreign_keys,
            inspector.get_multi_columns,
        )
    )
    found = {}
    for table in sorted(columns.keys() - _SCHEMA_TABLES):
        key = keys[table]["constrained_columns"]
        restrictions = {("key", tuple(key))}
        restrictions |= {("unique", tuple(it["column_names"])) for it in uniques[table]}
        restrictions |= {("unique", tuple(it["column_names"])) for it in indexes[table] if it["unique"]}
        restrictions |= {("check", it["sqltext"]) for it in checks[table]}
        restrictions |= {("reference", (*it["constrained_columns"], it["referred_table"])) for it in references[table]}
        described = {
            column["name"]: (str(column["type"]), column["nullable"], column["default"] is not None)
            for column in columns[table]
        }
        found[table] = {"columns": described, "key": key, "restrictions": restrictions}
    return found


def read_indexes(database):
    """Name → definition of every index, expression indexes too."""
    if database.is_sqlite:
        query = "SELECT name, sql FROM sqlite_master WHERE type = 'index' AND sql IS NOT NULL"
    else:
        query = "SELECT indexname, indexdef FROM pg_indexes WHERE schemaname = 'public'"
    with database.engine.connect() as connection:
        return {name: " ".join(definition.split()) for name, definition in connection.execute(text(query))}


def find_breaking_changes(before, after, *, removable=frozenset(), retired=frozenset()):
    """List what in `after` breaks a release made for `before`; both are results of `described`.

    Args:
        before: The schema that it was made for.
        after: The schema that it meets.
        removable: Tables and columns that it does not use any more.
        retired: Tables and columns that may lose their restrictions.
    """
    found = [f"{table} is gone" for table in before.keys() - after.keys() - removable]
    for table in before.keys() & after.keys():
        old, new = before[table], after[table]
        found += [
            f"{table}.{name} is gone"
            for name in old["columns"].keys() - new["columns"].keys()
            if f"{table}.{name}" not in removable
        ]
        found += [
            f"{table}.{name} {change}"
            for name in old["columns"].keys() & new["columns"].keys()
            for change in _column_changes(old["columns"][name], new["columns"][name], free=f"{table}.{name}" in retired)
        ]
        found += [
            f"{table}.{name} is required and has no default"
            for name in new["columns"].keys() - old["columns"].keys()
            if new["columns"][name][1:] == (False, False)
        ]
        found += [f"{table} restricts rows by {it}" for it in new["restrictions"] - old["restrictions"]]
        found += [f"{table} has no {it} any more" for it in old["restrictions"] - new["restrictions"]]
    return sorted(found)


def _column_changes(old, new, *, free):
    if old[0] != new[0]:
        yield f"was {old[0]} and is {new[0]}"
    if old[1] != new[1] and not (free and new[1]):
        yield "may be empty now" if new[1] else "is required now"
    if old[2] and not new[2] and not (free and new[1]):
        yield "has no default any more"
