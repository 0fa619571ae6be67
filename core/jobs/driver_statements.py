"""Statements that every submission runs, compiled once and then executed by the database's driver.

SQLAlchemy's own execution of such a statement takes ten times as long as SQLite's.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Column, Connection, Dialect, Insert, Select, Table
from sqlalchemy.engine.interfaces import DBAPICursor
from sqlalchemy.exc import DBAPIError


class DriverStatement:
    """A statement with parameters, each of which is the value of a column of its name.

    Args:
        dialect: The database's dialect.
        statement: An insert, or a select with bound parameters.
        table: The parameters' table.
        names: Names of the parameters.
        results: The columns of the statement's result.
    """

    def __init__(
        self,
        dialect: Dialect,
        statement: Insert | Select[Any],
        table: Table,
        names: Collection[str],
        results: Sequence[Column[Any]] = (),
    ) -> None:
        compiled: Any = statement.compile(dialect=dialect, column_keys=list(names))
        self._text = str(compiled)
        self._order: list[str] | None = compiled.positiontup
        self._constants = {name: value for name, value in compiled.params.items() if name not in names}
        converters = {name: table.c[name].type.dialect_impl(dialect).bind_processor(dialect) for name in names}
        self._converters = {name: convert for name, convert in converters.items() if convert is not None}
        self._readers = [one.type.dialect_impl(dialect).result_processor(dialect, None) for one in results]

    def execute(self, connection: Connection, rows: Sequence[Mapping[str, Any]]) -> None:
        """Execute the statement once for each row of parameters.

        Raises:
            DBAPIError: The one that SQLAlchemy would raise.
        """
        with self._cursor(connection) as cursor:
            if len(rows) == 1:
                cursor.execute(self._text, self._parameters(rows[0]))
            else:
                cursor.executemany(self._text, [self._parameters(row) for row in rows])

    def fetch(self, connection: Connection, row: Mapping[str, Any]) -> Sequence[Any] | None:
        """Execute the statement and return the first row of its result, or None; raises what `execute` does."""
        with self._cursor(connection) as cursor:
            cursor.execute(self._text, self._parameters(row))
            found: Sequence[Any] | None = cursor.fetchone()
        if found is None:
            return None
        return [value if read is None else read(value) for value, read in zip(found, self._readers, strict=True)]

    def insert(self, connection: Connection, row: Mapping[str, Any]) -> int | None:
        """Execute an insert in SQLite; return the new row's key, or None if it conflicts and is ignored."""
        with self._cursor(connection) as cursor:
            cursor.execute(self._text, self._parameters(row))
            return cursor.lastrowid if cursor.rowcount else None

    @contextmanager
    def _cursor(self, connection: Connection) -> Iterator[DBAPICursor]:
        driver_error = connection.dialect.loaded_dbapi.Error
        cursor = connection.connection.cursor()
        try:
            yield cursor
        except driver_error as error:
            raise DBAPIError.instance(
                self._text, None, error, driver_error, hide_parameters=True, dialect=connection.dialect
            ) from error
        finally:
            cursor.close()

    def _parameters(self, row: Mapping[str, Any]) -> Any:  # noqa: ANN401 - by position or by name, as the driver takes it
        values = {**self._constants, **row}
        for name, convert in self._converters.items():
            values[name] = convert(values[name])
        return values if self._order is None else tuple([values[name] for name in self._order])
