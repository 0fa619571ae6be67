"""Statements compiled once, for what every job does, and nothing else.

Through SQLAlchemy, the transactions of one job take 1.35 times as long on SQLite (3.9 ms, not 2.9), and its claim, at
which all workers take turns, 1.6 times.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Connection, Delete, Dialect, Insert, Select, Update, false, literal
from sqlalchemy.orm import Session

from core.db.database import driver_error

_Convert = Callable[[Any], Any]


class _Compiled(NamedTuple):
    text: str
    own: Mapping[str, Any]  # values that the statement has itself, as the driver takes them
    positions: list[str] | None  # names of the parameters in the driver's order; None: the driver takes them by name
    converts: list[tuple[str, _Convert]]

    def driver_parameters(self, parameters: Mapping[str, Any]) -> Any:  # noqa: ANN401 - by position or by name
        values = {**self.own, **parameters}
        for name, convert in self.converts:
            values[name] = convert(values[name])
        return values if self.positions is None else tuple([values[name] for name in self.positions])


class Prepared:
    """A statement of SQLAlchemy's Core. A session's copies of rows that it changes are not updated.

    `statement`: the statement; for `IN` see `is_one_of`.
    """

    def __init__(
        self, statement: Select[*tuple[Any, ...]] | Insert | Update | Delete, columns: Sequence[str] = ()
    ) -> None:
        # Inline: else the statement would return the new row's key.
        self._statement = statement.inline() if isinstance(statement, Insert) else statement
        self._columns = columns or None
        self._compiled: dict[str, _Compiled] = {}
        self._converts: dict[str, list[tuple[int, _Convert]]] = {}

    def execute(self, session: Session, *parameters: Mapping[str, Any]) -> None:
        with self._run(session, *parameters):
            pass

    def rows(self, session: Session, parameters: Mapping[str, Any]) -> list[list[Any]]:
        """Run the statement and return the values of all rows, in the order of its columns."""
        with self._run(session, parameters) as cursor:
            rows = [list(row) for row in cursor.fetchall()]
            dialect = _connection(session).dialect
            converts = self._converts.get(dialect.name)
            if converts is None:
                converts = self._converts[dialect.name] = self._find_converts(dialect, cursor.description)
        for row in rows:
            for index, convert in converts:
                row[index] = convert(row[index])
        return rows

    @contextmanager
    def _run(self, session: Session, *parameters: Mapping[str, Any]) -> Iterator[Any]:
        """Run the statement by the driver itself; its errors are raised as SQLAlchemy's."""
        connection = _connection(session)
        dialect = connection.dialect
        compiled = self._compiled.get(dialect.name)
        if compiled is None:
            compiled = self._compiled[dialect.name] = self._compile(dialect)
        values = [compiled.driver_parameters(values) for values in parameters]
        proxied, cursor = connection.connection, None
        try:
            cursor = proxied.cursor()
            if len(values) == 1:
                cursor.execute(compiled.text, values[0])
            else:
                cursor.executemany(compiled.text, values)
            yield cursor
        except dialect.loaded_dbapi.Error as error:
            lost = dialect.is_disconnect(error, proxied, cursor)
            if lost:
                connection.invalidate(error)
            raise driver_error(dialect, compiled.text, error, lost=lost) from error
        finally:
            if cursor is not None:
                cursor.close()

    def _compile(self, dialect: Dialect) -> _Compiled:
        compiled: Any = self._statement.compile(dialect=dialect, column_keys=self._columns)
        driver_values, converts = {}, []
        for bind, name in compiled.bind_names.items():
            convert = bind.type.dialect_impl(dialect).bind_processor(dialect)
            if not bind.required:
                driver_values[name] = convert(bind.effective_value) if convert else bind.effective_value
            elif convert is not None:
                converts.append((name, convert))
        return _Compiled(compiled.string, driver_values, compiled.positiontup, converts)

    def _find_converts(self, dialect: Dialect, description: Sequence[Any]) -> list[tuple[int, _Convert]]:
        impls = (column.type.dialect_impl(dialect) for column in self._statement.exported_columns)
        converts = (impl.result_processor(dialect, kind[1]) for impl, kind in zip(impls, description, strict=True))
        return [(index, convert) for index, convert in enumerate(converts) if convert is not None]


def is_one_of(column: Any, values: Collection[Any]) -> ColumnElement[bool]:  # noqa: ANN401 - of a table or a class
    """Build `IN` with these values; that of SQLAlchemy gets its text only when the statement runs."""
    return column.in_([literal(value, column.type) for value in values]) if values else false()


def _connection(session: Session) -> Connection:
    # A session is bound to its connection; to ask it for one takes as long as a statement. Only so does a savepoint
    # begin, though.
    bound = isinstance(session.bind, Connection) and not session.in_nested_transaction()
    return session.bind if bound else session.connection()  # type: ignore[return-value] # checked above
