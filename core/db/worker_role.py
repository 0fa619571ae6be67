"""The PostgreSQL role of workers: it runs jobs, and cannot touch keys, sessions, users and the record of changes.

A worker that has joined has a role of its own, which is a member of that one.
"""

import secrets
from urllib.parse import parse_qs, unquote, urlsplit

import psycopg
from psycopg import sql
from sqlalchemy import Connection, make_url
from sqlalchemy.orm import Session

from core.db.database import Database
from core.errors import SpecInvalid

_READ, _ADD = "SELECT", "SELECT, INSERT"
_ALL = "SELECT, INSERT, UPDATE, DELETE"
PRIVILEGES = {
    **dict.fromkeys(("alembic_version", "comparisons", "comparison_jobs", "schedules"), _READ),
    **dict.fromkeys(("sweeps", "sweep_trials"), _READ),
    **dict.fromkeys(("secrets", "registries", "git_logins"), _READ),
    **dict.fromkeys(("api_keys", "changes", "one_time_tokens", "sessions", "user_keys", "users", "worker_tokens"), ""),
    "saved_views": "",
    **dict.fromkeys(("attempts", "gpu_allocations", "host_images", "last_metrics", "leader_leases", "metrics"), _ALL),
    **dict.fromkeys(("outbox", "pending_deletions", "port_allocations", "port_requests", "repair_counts"), _ALL),
    **dict.fromkeys(("installation", "job_params", "resources", "workers"), _ALL),
    "events": _ADD,
    "job_dependencies": "SELECT, DELETE, UPDATE (must_succeed)",  # which FOR UPDATE needs
    "job_logins": "SELECT, DELETE",
    "jobs": "SELECT, UPDATE",
    "projects": "SELECT, UPDATE (last_claimed_at)",
    "uploaded_files": "SELECT, DELETE",
}
"""The rights of the role by table. It reads secrets and logins: a worker gives them to its jobs."""

_ATTRIBUTES = "SELECT rolsuper, rolcreaterole, rolcreatedb FROM pg_roles WHERE rolname = %s"


def create(database: Database, url: str) -> str:
    """Make the role of a database URL, or give an existing one this password and these rights; return its name."""
    parts = urlsplit(url)
    name = unquote(parts.username or "")
    password = unquote(parts.password or "") or parse_qs(parts.query).get("password", [""])[0]
    if database.is_sqlite or not name or name == database.engine.url.username:
        raise SpecInvalid(
            "Give the PostgreSQL URL that workers connect with, with a user of its own, such as "
            "postgresql://gradient_worker:PASSWORD@HOST/DATABASE.",
            field="database.worker_url",
        )
    try:
        with database.engine.begin() as connection:
            driver = _driver(connection)
            for statement in _statements(
                sql.Identifier(name), password, driver.execute(_ATTRIBUTES, (name,)).fetchone()
            ):
                driver.execute(statement)
    except psycopg.Error as error:
        raise SpecInvalid(
            f"The role {name!r} of workers cannot be made: {error}. Let an administrator of the database make it, "
            "or give the service's own user CREATEROLE.",
            field="database.worker_url",
        ) from error
    return name


def create_member(session: Session, shared_url: str, name: str) -> str:
    """Make the role of one worker; return its database URL.

    `shared_url`: that of the role of all workers. Raises `SpecInvalid`: the service's own role may not make roles.
    """
    shared = make_url(shared_url)
    password = secrets.token_urlsafe()
    connection = session.connection()
    driver = _driver(connection)
    hashed = driver.pgconn.encrypt_password(password.encode(), name.encode()).decode()  # the server logs statements
    own, to = sql.Identifier(name), sql.Identifier(shared.username or "")
    try:
        with connection.begin_nested():
            driver.execute(sql.SQL("CREATE ROLE {} LOGIN PASSWORD {} IN ROLE {}").format(own, sql.Literal(hashed), to))
            driver.execute(sql.SQL("GRANT {} TO CURRENT_USER").format(own))  # to end its connections
    except psycopg.Error as error:
        raise SpecInvalid(str(error)) from error
    url = shared.difference_update_query(["user", "password"]).set(username=name, password=password)
    return url.render_as_string(hide_password=False)


def end_member(database: Database, name: str) -> str | None:
    """Take the role's login and end its connections, at once, then drop it; return what went wrong."""
    role, trouble = sql.Identifier(name), "can still log in"
    try:
        with database.engine.begin() as connection:
            driver = _driver(connection)
            if driver.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", (name,)).fetchone() is None:
                return None
            driver.execute(sql.SQL("ALTER ROLE {} NOLOGIN").format(role))
        trouble = "cannot log in any more, but is still there"
        with database.engine.begin() as connection:
            driver = _driver(connection)
            driver.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = %s", (name,))
            driver.execute(sql.SQL("DROP OWNED BY {}").format(role))
            driver.execute(sql.SQL("DROP ROLE {}").format(role))
    except psycopg.Error as error:
        return f"The database role {name!r} {trouble}: {error}. Let an administrator of the database drop it."
    return None


def _driver(connection: Connection) -> psycopg.Connection:
    driver: psycopg.Connection = connection.connection.driver_connection  # type: ignore[assignment] # of psycopg
    return driver


def _statements(role: sql.Identifier, password: str, known: tuple[bool, ...] | None) -> list[sql.Composed]:
    verb = sql.SQL("CREATE" if known is None else "ALTER")
    own = sql.SQL(" PASSWORD {}").format(sql.Literal(password)) if password else sql.SQL("")
    # Naming an attribute takes the right to change it, even where it has that value: CREATEROLE alone is not enough.
    refused = ("NOSUPERUSER", "NOCREATEROLE", "NOCREATEDB")
    without = " ".join(name for name, has in zip(refused, known or (), strict=False) if has)
    statements = [
        sql.SQL(f"{{}} ROLE {{}} LOGIN {without}").format(verb, role) + own,
        sql.SQL("REVOKE ALL ON ALL TABLES IN SCHEMA public FROM {}").format(role),
        sql.SQL("GRANT USAGE ON SCHEMA public TO {}").format(role),
        sql.SQL("GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO {}").format(role),
    ]
    for table, rights in PRIVILEGES.items():
        if rights:
            grant = sql.SQL("GRANT {} ON {} TO {}")
            statements.append(grant.format(sql.SQL(rights), sql.Identifier(table), role))
    return statements
