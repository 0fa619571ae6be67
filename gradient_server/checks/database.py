"""Checks of the database: reachable, durable, migrated, clocks in step."""

import time
from collections.abc import Iterator
from datetime import UTC, datetime

from sqlalchemy import make_url, select, text
from sqlalchemy.orm import Session

from core.db import schema_check
from core.db.database import Database, now
from core.formatting import format_duration
from core.jobs import queries
from core.settings import Settings
from gradient_server.checks.finding import Finding, ok, problem, warning

_MIN_POSTGRES = 14
_MAX_SKEW_SECONDS = 2.0


def display_url(settings: Settings) -> str:
    """Return the database's address without its password."""
    return make_url(settings.database_url).render_as_string(hide_password=True)


def durability(database: Database, session: Session) -> Iterator[Finding]:
    """Report the database's version, and whether its commits survive a power cut."""
    yield from _sqlite_durability(session) if database.is_sqlite else _postgres_durability(session)


def _sqlite_durability(session: Session) -> Iterator[Finding]:
    version = session.scalar(text("SELECT sqlite_version()"))
    journal = session.scalar(text("PRAGMA journal_mode"))
    if journal != "wal":
        yield warning(
            "database",
            f"SQLite {version} with journal mode {journal}: readers and writers block each other.",
            "Start `gradient-server up` once: it sets WAL. If that fails, the file is on a network file system.",
        )
    else:
        yield ok("database", f"SQLite {version}, WAL; every process of the service commits with synchronous=FULL.")


def _postgres_durability(session: Session) -> Iterator[Finding]:
    number = int(session.scalar(text("SHOW server_version_num")) or 0)
    version = session.scalar(text("SHOW server_version"))
    unsafe = [name for name in ("fsync", "synchronous_commit") if session.scalar(text(f"SHOW {name}")) == "off"]
    if number // 10_000 < _MIN_POSTGRES:
        yield warning(
            "database", f"PostgreSQL {version} is no longer maintained.", "Upgrade it to a maintained release."
        )
    if unsafe:
        yield warning(
            "database",
            f"PostgreSQL {version} has {' and '.join(unsafe)} off: a crash may lose jobs that have already been "
            "accepted.",
            f"Set {' and '.join(f'{name} = on' for name in unsafe)} in postgresql.conf.",
        )
    if number // 10_000 >= _MIN_POSTGRES and not unsafe:
        yield ok("database", f"PostgreSQL {version}; its commits are durable.")


def migrations(database: Database) -> Finding:
    state = schema_check.get_state(database)
    return ok("migrations", state.message) if state.fix is None else problem("migrations", state.message, state.fix)


def clocks(session: Session) -> Iterator[Finding]:
    """Check this machine's clock against the database's, and against the newest event."""
    began = time.time()
    theirs = session.scalars(select(now())).one()
    ended = time.time()
    # A difference within the query's own duration cannot be distinguished from latency.
    skew = max(0.0, abs(theirs.timestamp() - (began + ended) / 2) - (ended - began) / 2)
    fix = "Synchronize both machines with NTP (chrony or systemd-timesyncd)."
    if skew > _MAX_SKEW_SECONDS:
        yield warning("clock", f"The clocks of this machine and the database are {format_duration(skew)} apart.", fix)
    newest = queries.newest_event_at(session)
    ahead = (newest - datetime.now(UTC)).total_seconds() if newest else 0.0
    if ahead > _MAX_SKEW_SECONDS:
        yield problem(
            "clock",
            f"The last event is {format_duration(ahead)} in the future: the clock was set back.",
            "Correct this machine's clock; leases and time limits depend on it.",
        )
    elif skew <= _MAX_SKEW_SECONDS:
        yield ok("clock", f"The clocks of this machine and the database agree within {skew + 0.001:.3f} s.")
