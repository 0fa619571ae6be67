import logging
import os
import select
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sqlalchemy import (
    Connection,
    DateTime,
    Dialect,
    Engine,
    Float,
    MetaData,
    TypeDecorator,
    create_engine,
    event,
    literal,
)
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import (
    DBAPIError,
    DisconnectionError,
    InterfaceError,
    InternalError,
    OperationalError,
    SQLAlchemyError,
)
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.orm import DeclarativeBase, Session
from sqlalchemy.pool import ConnectionPoolEntry
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement

from core.errors import DatabaseFull, DatabaseMissing, StoreUnavailable
from core.settings import Settings
from core.settings.database import sqlite_file

logger = logging.getLogger(__name__)

_POSTGRES_DISK_FULL, _POSTGRES_READ_ONLY = "53100", "25006"
_ON_COMMIT = "gradient_on_commit"
_USED_AT = "gradient_used_at"
_SQLITE_BUSY_SECONDS = 20
_UNLIMITED = -1
_SQLITE_KEPT = 16
_KINDS_OF_WORK = 5
"""Kinds of requests that have as many threads of their own as `pool_size` says; see `service.http.lanes`."""
POOL_SIZE = 5  # threads of an API process for reads, for files and for logs, each
TRUSTED_SECONDS = 5.0  # time after its last use for which a connection that its server has not closed is taken to work
# Besides operational errors: a connection that broke between two statements or was idle for too long, and a server that
# became read-only.
_UNAVAILABLE_ERRORS = (OperationalError, InterfaceError, InternalError)
_POSTGRES_CONNECT_ARGS = {
    # With psycopg's defaults, calls still blocked 75 s after the network went down.
    "connect_timeout": 5,
    "tcp_user_timeout": 10_000,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "client_encoding": "UTF8",  # else text of a database that was made in the locale C comes as bytes
}
_POSTGRES_LIMITS = {"statement_timeout": "15s", "lock_timeout": "5s", "idle_in_transaction_session_timeout": "30s"}


class Base(DeclarativeBase):
    """Base of all tables; names every constraint, so that migrations can drop it."""

    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(column_0_N_label)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "ck": "ck_%(table_name)s_%(constraint_name)s",
            "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
            "pk": "pk_%(table_name)s",
        }
    )


class UtcDateTime(TypeDecorator[datetime]):
    """An aware UTC datetime; SQLite has no time zones, so it is naive UTC there."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Convert a value for the database: UTC, naive on SQLite."""
        if value is None:
            return None
        value = value.astimezone(UTC)
        return value.replace(tzinfo=None) if dialect.name == "sqlite" else value

    def result_processor(self, dialect: Dialect, coltype: object) -> Callable[[Any], datetime | None]:
        del coltype
        return _aware_from_text if dialect.name == "sqlite" else _in_utc


def _aware_from_text(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(f"{text}+00:00")


def _in_utc(value: datetime | None) -> datetime | None:
    return None if value is None else value.astimezone(UTC)


class now(FunctionElement[datetime]):  # noqa: N801 - reads as the SQL function it is
    """The database's clock plus `seconds`. Leases use this clock only, never a host's."""

    type = UtcDateTime()
    # The seconds are a bound parameter, so that a statement with a time in it is compiled only once.
    inherit_cache = True

    def __init__(self, seconds: float = 0.0) -> None:
        super().__init__(literal(round(float(seconds), 3), Float))


@compiles(now, "sqlite")
def _now_sqlite(element: now, compiler: SQLCompiler, **options: Any) -> str:  # noqa: ANN401 - SQLAlchemy's hook
    seconds = compiler.process(element.clauses, **options)
    return f"(strftime('%Y-%m-%d %H:%M:%f', 'now', {seconds} || ' seconds') || '000')"


@compiles(now, "postgresql")
def _now_postgresql(element: now, compiler: SQLCompiler, **options: Any) -> str:  # noqa: ANN401 - SQLAlchemy's hook
    seconds = compiler.process(element.clauses, **options)
    return f"(clock_timestamp() + make_interval(secs => {seconds}))"


def on_commit(session: Session, callback: Callable[[], None]) -> None:
    """Run `callback` once the session's transaction is safely committed; never if it is rolled back."""
    session.info.setdefault(_ON_COMMIT, []).append(callback)


class Database:
    """Access of one process to the database.

    Args:
        url: SQLAlchemy URL; `sqlite:///…` or `postgresql://…` (psycopg is used for the latter).
        pool_size: Connections kept (PostgreSQL only). There may be more, one for each thread that needs one, so that
            none waits for another's.
        read_only: Refuse every change, create nothing, and leave the database's settings as they are.
        create: Create the file and the tables of SQLite where there are none.
        pooler: A pooler of transactions is in between: prepare nothing, and set limits in each transaction.
    """

    def __init__(
        self,
        url: str,
        *,
        pool_size: int = POOL_SIZE,
        read_only: bool = False,
        pooler: bool = False,
        create: bool = True,
    ) -> None:
        self.check_thread: Callable[[], None] = _allow_any_thread  # raises in a thread that may not open a session
        self.url = _with_driver(url)
        self.creates = create and not read_only
        if self.creates:
            _create_file(sqlite_file(self.url))
        if read_only:
            self.engine = _read_only_engine(self.url, pooler=pooler)
        else:
            self.engine = _engine(self.url, pool_size, pooler=pooler)
        # SQLite polls for its write lock with sleeps; within one process this lock orders the threads instead.
        self._write_lock = threading.Lock()
        self._writing_engine = self.engine.execution_options(gradient_write=True)
        self._writer: Connection | None = None
        self._closed = False
        self._reading_engine = (
            self.engine if self.is_sqlite else self.engine.execution_options(postgresql_readonly=True)
        )

    @classmethod
    def of(cls, settings: Settings, *, read_only: bool = False, create: bool = False) -> "Database":
        """Open the database that the settings name; only the service creates it.

        Raises `DatabaseMissing`: it is a file that does not exist.
        """
        wanted = settings.database
        if not create:
            require_database(settings)
        return cls(
            settings.database_url,
            read_only=read_only,
            pooler=wanted.transaction_pooler,
            create=create,
        )

    @property
    def is_sqlite(self) -> bool:
        return self.engine.dialect.name == "sqlite"

    @contextmanager
    def read(self) -> Iterator[Session]:
        """Open a session that only reads; nothing in it is committed."""
        self.check_thread()
        try:  # around the transaction: its end fails if the connection is lost
            # It ends with COMMIT, because psycopg drops a connection's prepared statements at each ROLLBACK.
            with self._reading_engine.begin() as connection, Session(connection, expire_on_commit=False) as session:
                yield session
                if self.is_sqlite:  # PostgreSQL refuses changes in a transaction that only reads
                    connection.rollback()
        except _UNAVAILABLE_ERRORS as error:
            raise _unavailable(error) from error

    @contextmanager
    def write(self) -> Iterator[Session]:
        """Open a session whose changes are committed when the block ends, all or none.

        Raises `StoreUnavailable`: the database does not answer; nothing was committed, as far as it can be known.
        """
        self.check_thread()
        try:
            # The connection's transaction, which the session joins: one of the session's own takes twice as long.
            with self._begin_writing() as connection, Session(connection, expire_on_commit=False) as session:
                yield session
                session.flush()
            callbacks: list[Callable[[], None]] = session.info.pop(_ON_COMMIT, [])
        except _UNAVAILABLE_ERRORS as error:
            if getattr(error.orig, "sqlstate", None) == _POSTGRES_READ_ONLY:
                self.engine.dispose()  # a connection may stay read-only when the server no longer is
            raise _unavailable(error) from error
        for callback in callbacks:
            try:
                callback()
            except Exception:  # the commit stands; a failed notification must not fail the request
                logger.exception("on_commit_failed")

    @contextmanager
    def _begin_writing(self) -> Iterator[Connection]:
        """Begin a transaction; on SQLite, of which one at a time may write, always on the same connection.

        To get one from the pool and to return it takes longer than to begin and to commit there.
        """
        if not self.is_sqlite:
            with self._writing_engine.begin() as connection:
                yield connection
            return
        with self._write_lock:
            connection, self._writer = self._writer or self._writing_engine.connect(), None
            try:
                with connection.begin():
                    yield connection
            except BaseException:
                connection.close()
                raise
            if self._closed:
                connection.close()
            else:
                self._writer = connection

    def ping(self) -> None:
        try:
            with self._reading_engine.begin() as connection:
                connection.exec_driver_sql("SELECT 1")
        except DBAPIError as error:
            raise _unavailable(error) from error

    def close(self) -> None:
        """Close every connection; one that a thread still uses, or opens later, once it is returned."""
        event.listen(self.engine.pool, "checkin", _close_connection)
        with self._write_lock:
            self._closed = True
            if self._writer is not None:
                self._writer.close()
                self._writer = None
        self.engine.dispose()


def require_database(settings: Settings) -> None:
    """Raise `DatabaseMissing` if the database is SQLite's and its file does not exist."""
    file = settings.sqlite_file
    if file is not None and not file.is_file():
        raise database_missing(file)


def database_missing(file: Path) -> DatabaseMissing:
    return DatabaseMissing(
        f"There is no database at {file.absolute()}. The service creates it when it starts (`gradient-server up` or "
        "`api`): start it first. If the database is elsewhere, correct GRADIENT_HOME or GRADIENT_DATABASE__URL. If "
        "the service runs on another host, run `gradient-server workers invite` there, and here the command that "
        "it prints (`gradient-server join URL --token TOKEN`)."
    )


def _allow_any_thread() -> None:
    pass


def _close_connection(connection: DBAPIConnection | None, record: ConnectionPoolEntry) -> None:
    del connection  # the record has it
    record.invalidate()


def _unavailable(error: SQLAlchemyError) -> StoreUnavailable:
    cause = getattr(error, "orig", None)
    if getattr(cause, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL:
        unavailable: StoreUnavailable = DatabaseFull("The disk of GRADIENT_HOME is full")
    elif getattr(cause, "sqlstate", None) == _POSTGRES_DISK_FULL:
        unavailable = DatabaseFull("The disk of the PostgreSQL server is full")
    else:
        unavailable = StoreUnavailable("The database does not answer right now. Try again in a moment.")
    unavailable.__cause__ = error
    logger.warning("database_unavailable", exc_info=unavailable)
    return unavailable


def driver_error(dialect: Dialect, statement: str, error: Exception, *, lost: bool = False) -> Exception:
    """Return the driver's error as SQLAlchemy raises it, without parameters."""
    base = dialect.loaded_dbapi.Error
    return DBAPIError.instance(
        statement, None, error, base, hide_parameters=True, connection_invalidated=lost, dialect=dialect
    )


def _with_driver(url: str) -> str:
    for plain in ("postgres://", "postgresql://"):
        if url.startswith(plain):
            return "postgresql+psycopg://" + url.removeprefix(plain)
    return url


def _engine(url: str, pool_size: int, *, pooler: bool) -> Engine:
    file = sqlite_file(url)
    if file is not None:
        # Parameters hold users' data, including secrets, and must not get into errors and so into our log.
        engine = create_engine(
            url,
            creator=partial(_connect_sqlite, file),
            hide_parameters=True,
            pool_size=_SQLITE_KEPT,
            max_overflow=_UNLIMITED,
        )
        event.listen(engine, "connect", _sqlite_connect)
        event.listen(engine, "begin", _sqlite_begin)
        return engine
    engine = create_engine(
        url,
        pool_size=_KINDS_OF_WORK * pool_size,
        max_overflow=_UNLIMITED,
        hide_parameters=True,
        connect_args=_connect_args(pooler=pooler),
    )
    event.listen(engine, "checkout", partial(_ping, engine.dialect))
    if pooler:
        event.listen(engine, "begin", _limit_transaction)
    return engine


def _connect_args(*, pooler: bool, more_options: str = "") -> dict[str, Any]:
    """Return psycopg's arguments of a connection.

    `pooler`: the server is behind a pooler of transactions: what belongs to a session would reach other sessions.
    """
    if pooler:
        return _POSTGRES_CONNECT_ARGS | {"prepare_threshold": None}
    options = "".join(f" -c {name}={value}" for name, value in _POSTGRES_LIMITS.items())
    return _POSTGRES_CONNECT_ARGS | {"options": f"{options}{more_options}".strip()}


def _limit_transaction(connection: Connection) -> None:
    connection.exec_driver_sql("; ".join(f"SET LOCAL {name} = '{value}'" for name, value in _POSTGRES_LIMITS.items()))


def _ping(dialect: Dialect, connection: DBAPIConnection, record: ConnectionPoolEntry, _fairy: object) -> None:
    """Check that a pooled connection still works, and have the pool replace it if not.

    A connection that was used a moment ago is asked only if the server has sent something: it says that it ends one, or
    closes it, and otherwise is silent between transactions.

    The pool's own pre-ping runs before the checkout event, so `core.db.connection_watchdog` could not free a thread
    whose ping never gets an answer.
    """
    used, record.info[_USED_AT] = record.info.get(_USED_AT), time.monotonic()
    if used is None:
        return  # just created
    try:
        if time.monotonic() - used > TRUSTED_SECONDS or _has_input(connection):
            dialect.do_ping(connection)
    except dialect.loaded_dbapi.Error as error:
        raise DisconnectionError from error


def _has_input(connection: Any) -> bool:  # noqa: ANN401 - of the driver
    waiting = select.poll()
    waiting.register(connection.fileno(), select.POLLIN)
    return bool(waiting.poll(0))


def _read_only_engine(url: str, *, pooler: bool) -> Engine:
    file = sqlite_file(url)
    if file is None:
        args = _connect_args(pooler=pooler, more_options=" -c default_transaction_read_only=on")
        engine = create_engine(url, connect_args=args)
        return engine.execution_options(postgresql_readonly=True) if pooler else engine
    engine = create_engine(url, creator=partial(_connect_sqlite, file))
    event.listen(engine, "connect", _sqlite_connect_reading)
    event.listen(engine, "begin", _sqlite_begin)
    return engine


def _create_file(file: Path | None) -> None:
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        # SQLite gives the files beside it (-wal, -shm) the same mode.
        os.close(os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))


def _connect_sqlite(file: Path) -> sqlite3.Connection:
    # Never created here, where it may have been deleted. Read-write also for readers, because the last connection
    # removes the -wal and -shm files on close.
    name = f"file://{quote(str(file.absolute()))}?mode=rw"
    return sqlite3.connect(name, uri=True, timeout=_SQLITE_BUSY_SECONDS, check_same_thread=False)


def _sqlite_connect(connection: sqlite3.Connection, _record: object) -> None:
    connection.isolation_level = None  # `_sqlite_begin` sends BEGIN
    _fold_all_letters(connection)
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON"):
        connection.execute(f"PRAGMA {pragma}")


def _sqlite_connect_reading(connection: sqlite3.Connection, _record: object) -> None:
    connection.isolation_level = None
    _fold_all_letters(connection)
    connection.execute("PRAGMA query_only=ON")


def _fold_all_letters(connection: sqlite3.Connection) -> None:
    """Let `lower` fold all letters, as in PostgreSQL: SQLite's own folds only those of ASCII."""
    connection.create_function("lower", 1, lambda text: text and text.casefold(), deterministic=True)


def _sqlite_begin(connection: Connection) -> None:
    # A transaction that reads first and writes later fails at once with "database is locked" if another one
    # wrote in between; with the write lock taken at BEGIN it waits instead.
    begin = "BEGIN IMMEDIATE" if connection.get_execution_options().get("gradient_write") else "BEGIN"
    driver: Any = connection.connection.driver_connection
    try:
        driver.execute(begin)  # SQLAlchemy's own execution takes a third of an empty transaction
    except sqlite3.Error as error:
        raise driver_error(connection.dialect, begin, error) from error
