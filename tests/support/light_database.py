"""Cheaper databases for tests within the test's process; the processes that tests start keep production's settings.

Tests open a new `Database` each, hundreds in a process. In production a process opens one, compiles each statement once
and waits for the disk at each commit, so that a power failure loses nothing.
"""

import sqlite3
from collections.abc import Callable

import pytest
from sqlalchemy import Dialect, Engine, event, util
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg
from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite

from core.db import database

_COMPILED_STATEMENTS = 5000
"""Statements kept for all databases of the process; an engine's own cache has 500."""


def use_light_databases(patch: pytest.MonkeyPatch) -> None:
    """Have the databases that this process opens from now on share compiled statements, and not wait for the disk."""
    compiled = util.LRUCache(_COMPILED_STATEMENTS)
    make_engine: Callable[..., Engine] = database._engine

    def make_light_engine(url: str, pool_size: int, *, pooler: bool) -> Engine:
        engine = make_engine(url, pool_size, pooler=pooler)
        engine._compiled_cache = compiled
        if engine.dialect.name == "sqlite":
            event.listen(engine, "connect", _skip_disk_waits)
        return engine

    patch.setattr(database, "_engine", make_light_engine)
    # Compiled statements are found by their dialect, of which each engine has an object; all are configured alike.
    for dialect in (SQLiteDialect_pysqlite, PGDialect_psycopg):
        patch.setattr(dialect, "__eq__", _is_same_kind)
        patch.setattr(dialect, "__hash__", _hash_of_kind)


def _skip_disk_waits(connection: sqlite3.Connection, _record: object) -> None:
    connection.execute("PRAGMA synchronous=OFF")


def _is_same_kind(dialect: Dialect, other: object) -> bool:
    return type(dialect) is type(other)


def _hash_of_kind(dialect: Dialect) -> int:
    return hash(type(dialect))
