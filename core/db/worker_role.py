"""The PostgreSQL roles of workers: they run jobs, and cannot touch keys, sessions, users and the record of changes.

Workers that have the service's folders share one role, which may write what the life of any job needs. A worker that
has joined has a role of its own, a member of another one, which writes rows of that worker and of its jobs alone.
"""

import secrets
from collections.abc import Mapping
from hashlib import sha256
from typing import LiteralString
from urllib.parse import parse_qs, unquote, urlsplit

import psycopg
from psycopg import sql
from sqlalchemy import Connection, make_url
from sqlalchemy.orm import Session

from core.db.database import Database
from core.db.far_rows import FAR_ROWS
from core.errors import SpecInvalid

_READ = "SELECT"
_HIDDEN = (
    *("changes", "identities", "notification_deliveries", "notification_receivers", "one_time_tokens"),
    *("saved_views", "sessions", "ssh_keys", "users", "worker_tokens"),
)
_RIGHTS = ("api_keys", "project_members", "user_keys")
_READ_ONLY = (
    *("alembic_version", "budgets", "comparison_jobs", "comparisons", "notification_rules", "schedules"),
    *("sweep_trials", "sweeps"),
)
_JOB = """artifacts_state, ended_at, exit_code, finished_at, handle, heartbeat_at, host, image_digest, lease,
machine_faults, phase, phase_detail, reason, reason_detail, run_after, started_at, state, worker"""
_CLAIM = "attempt, claimed_at, nodes_port, run_limit, run_seconds"
_ATTEMPT = """allocation, artifact_bytes, diverged, ended_at, exit_code, gpus, image_digest, log_bytes,
mean_cpu_percent, mean_gpu_percent, mean_host_cpu_percent, peak_cpu_percent, peak_gpu_memory_bytes, peak_gpu_percent,
peak_memory_bytes, reason, reason_detail, sampled_seconds, started_at"""
_FAR_WORKER = """backends, boot_id, cpus, gpu_faults, gpus, low_disk, machine_types, memory_mb, nodes_address,
refusal, seen_at, slots, started_at, taken_gpus"""
_WORKER = f"host, {_FAR_WORKER}"
_RESOURCE = """billed_at, billed_until, deleting_at, detail, gone_at, health, operation, price_per_hour, seen_at,
state"""

PRIVILEGES = {
    **dict.fromkeys(_HIDDEN, ""),
    **dict.fromkeys((*_READ_ONLY, "git_logins", "project_members", "registries", "secrets", "user_keys"), _READ),
    "api_keys": "SELECT (expires_at, id, revoked_at, rights)",
    "attempts": f"SELECT, INSERT, UPDATE ({_ATTEMPT})",
    "events": "SELECT, INSERT",
    "gpu_allocations": "SELECT, INSERT, DELETE",
    "installation": "SELECT, INSERT, DELETE",
    "job_dependencies": "SELECT, DELETE, UPDATE (must_succeed)",  # which FOR UPDATE needs
    "job_logins": "SELECT, DELETE",
    "job_params": "SELECT, INSERT, DELETE, UPDATE (number, text)",
    "jobs": f"SELECT, UPDATE ({_JOB}, {_CLAIM}, artifacts_removed_at, logs_removed_at)",
    "last_metrics": "SELECT, INSERT, DELETE, UPDATE (value)",
    "leader_leases": "SELECT, INSERT, UPDATE (holder, until)",
    "metrics": "SELECT, INSERT, DELETE",
    "outbox": "SELECT, INSERT",
    "pending_deletions": "SELECT, INSERT, DELETE",
    "port_allocations": "SELECT, INSERT, DELETE",
    "port_requests": "SELECT, DELETE",
    "projects": "SELECT, UPDATE (last_claimed_at)",
    "repair_counts": "SELECT, INSERT, UPDATE (last_at, last_worker, total)",
    "resources": f"SELECT, INSERT, UPDATE ({_RESOURCE})",
    "uploaded_files": "SELECT, DELETE",
    "worker_tokens": "SELECT (worker)",
    "workers": f"SELECT, INSERT, UPDATE ({_WORKER})",
}
"""The rights by table of workers that have the service's folders. They give secrets and logins to their jobs."""

FAR_PRIVILEGES = {
    **dict.fromkeys((*_HIDDEN, *_RIGHTS, "git_logins", "pending_deletions", "registries", "secrets"), ""),
    **dict.fromkeys((*_READ_ONLY, "job_dependencies", "projects", "uploaded_files"), _READ),
    "attempts": f"SELECT, UPDATE ({_ATTEMPT})",
    "events": "SELECT, INSERT",
    "gpu_allocations": "SELECT, DELETE",
    "installation": "SELECT, INSERT, DELETE",
    "job_logins": "SELECT (job_id), DELETE",
    "job_params": "SELECT, INSERT, UPDATE (number, text)",
    "jobs": f"SELECT, UPDATE ({_JOB})",
    "last_metrics": "SELECT, INSERT, UPDATE (value)",
    "leader_leases": "SELECT, INSERT, UPDATE (holder, until)",
    "metrics": "SELECT, INSERT",
    "outbox": "SELECT, INSERT",
    "port_allocations": "SELECT, DELETE",
    "port_requests": "SELECT, DELETE",
    "repair_counts": "SELECT, INSERT, UPDATE (last_at, last_worker, total)",
    "resources": f"SELECT, INSERT, UPDATE ({_RESOURCE})",
    "workers": f"SELECT, UPDATE ({_FAR_WORKER})",
}
"""The rights by table of a worker that has joined, on the rows of `FAR_ROWS`. The service makes its claims."""

_LOGIN = """
CREATE OR REPLACE FUNCTION worker_of_login() RETURNS text LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp AS 'SELECT worker::text FROM public.worker_tokens WHERE login = session_user'
"""
_MAX_CONNECTIONS = 40  # of one worker, which keeps 25
_ATTRIBUTES = "SELECT rolsuper, rolcreaterole, rolcreatedb FROM pg_roles WHERE rolname = %s"


def create(database: Database, url: str) -> str:
    """Make the role of a database URL, or give an existing one this password and these rights; return its name."""
    parts = urlsplit(url)
    name = unquote(parts.username or "")
    password = unquote(parts.password or "") or parse_qs(parts.query).get("password", [""])[0]
    if database.is_sqlite or not name or name == database.engine.url.username:
        raise SpecInvalid(
            "Set a PostgreSQL URL for workers with a separate user, such as "
            "postgresql://gradient_worker:PASSWORD@HOST/DATABASE.",
            field="database.worker_url",
        )
    try:
        with database.engine.begin() as connection:
            driver = _driver(connection)
            _make_role(driver, name, PRIVILEGES, sql.SQL("LOGIN"), password)
            _make_role(driver, far_role(name), FAR_PRIVILEGES, sql.SQL("NOLOGIN"))
            driver.execute("GRANT ALL ON SCHEMA public TO CURRENT_USER")
            driver.execute("REVOKE CREATE ON SCHEMA public FROM PUBLIC")  # which PostgreSQL 14 gives
            _limit_storage(driver)
            _limit_rows(driver, name)
    except psycopg.Error as error:
        raise SpecInvalid(
            f"The role {name!r} of workers cannot be made: {error}. Let an administrator of the database make it, "
            "or give the service's own user CREATEROLE.",
            field="database.worker_url",
        ) from error
    return name


def far_role(shared: str) -> str:
    """Return the name of the role whose members are the workers that have joined."""
    return f"{shared}_far"


def create_member(session: Session, shared_url: str, name: str) -> str:
    """Make the role of one worker that joins; return its database URL.

    `shared_url`: that of the role of other workers. Raises `SpecInvalid`: the service's own role may not make roles.
    """
    shared = make_url(shared_url)
    password = secrets.token_urlsafe()
    connection = session.connection()
    driver = _driver(connection)
    hashed = driver.pgconn.encrypt_password(password.encode(), name.encode()).decode()  # the server logs statements
    limit = sql.Literal(_MAX_CONNECTIONS)
    role, to = sql.Identifier(name), sql.Identifier(far_role(shared.username or ""))
    try:
        with connection.begin_nested():
            driver.execute(
                sql.SQL("CREATE ROLE {} LOGIN CONNECTION LIMIT {} PASSWORD {} IN ROLE {}").format(
                    role, limit, sql.Literal(hashed), to
                )
            )
            driver.execute(sql.SQL("GRANT {} TO CURRENT_USER").format(role))  # to end its connections
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
        trouble = "can no longer log in but still exists"
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


def _make_role(
    driver: psycopg.Connection, name: str, privileges: Mapping[str, str], login: sql.SQL, password: str = ""
) -> None:
    role, attributes = sql.Identifier(name), driver.execute(_ATTRIBUTES, (name,)).fetchone()
    verb = sql.SQL("CREATE" if attributes is None else "ALTER")
    clause = sql.SQL(" PASSWORD {}").format(sql.Literal(password)) if password else sql.SQL("")
    # Naming an attribute takes the right to change it, even where it has that value: CREATEROLE alone is not enough.
    refused = ("NOSUPERUSER", "NOCREATEROLE", "NOCREATEDB")
    without = sql.SQL(" ").join(sql.SQL(no) for no, has in zip(refused, attributes or (), strict=False) if has)
    driver.execute(sql.SQL("{} ROLE {} {} {}").format(verb, role, login, without) + clause)
    driver.execute(sql.SQL("REVOKE ALL ON ALL TABLES IN SCHEMA public FROM {}").format(role))
    driver.execute(sql.SQL("GRANT USAGE ON SCHEMA public TO {}").format(role))
    driver.execute(sql.SQL("GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO {}").format(role))
    for table, rights in privileges.items():
        if rights:
            grant = sql.SQL("GRANT {} ON {} TO {}")
            driver.execute(grant.format(sql.SQL(rights), sql.Identifier(table), role))


def _limit_storage(driver: psycopg.Connection) -> None:
    """Let workers fill no disk outside the tables, as far as the service's own role may forbid it."""
    database = sql.Identifier(driver.info.dbname)
    driver.execute(sql.SQL("REVOKE TEMPORARY ON DATABASE {} FROM PUBLIC").format(database))  # else it is a warning
    if driver.info.parameter_status("is_superuser") == "on":
        functions = "lo_create(oid), lo_creat(integer), lo_from_bytea(oid, bytea)"
        driver.execute(f"REVOKE EXECUTE ON FUNCTION {functions} FROM PUBLIC")


def _limit_rows(driver: psycopg.Connection, shared: str) -> None:
    """Let workers that have joined change the rows of `FAR_ROWS` alone.

    It locks the tables, so it is done only if something differs, which the names of the policies tell.
    """
    digest = sha256(repr((shared, _LOGIN, FAR_ROWS)).encode()).hexdigest()[:12]
    policies = {
        (table, f"worker_{kind}_{digest}"): clause
        for table, (rows, changed) in FAR_ROWS.items()
        for kind, clause in _policies(rows, changed).items()
    }
    ours = "SELECT tablename, policyname FROM pg_policies WHERE schemaname = 'public' AND policyname ~ '^worker_'"
    present = driver.execute(ours).fetchall()
    if policies.keys() == set(present):
        return
    driver.execute(_LOGIN)
    names = {"shared": sql.Identifier(shared), "far": sql.Identifier(far_role(shared))}
    for table, policy in present:
        driver.execute(sql.SQL("DROP POLICY {} ON {}").format(sql.Identifier(policy), sql.Identifier(table)))
    for (table, policy), clause in policies.items():
        of_table = {"table": sql.Identifier(table), "policy": sql.Identifier(policy)} | names
        driver.execute(sql.SQL("ALTER TABLE {table} ENABLE ROW LEVEL SECURITY").format(**of_table))
        driver.execute(sql.SQL("CREATE POLICY {policy} ON {table} " + clause).format(**of_table))


def _policies(rows: str, changed: str) -> dict[str, LiteralString]:
    """Return the clauses of a table's policies, by kind."""
    return {
        "read": "FOR SELECT TO PUBLIC USING (true)",
        "shared": "TO {shared} USING (true)",
        "insert": f"FOR INSERT TO {{far}} WITH CHECK ({changed})",
        "update": f"FOR UPDATE TO {{far}} USING ({rows}) WITH CHECK ({changed})",
        "delete": f"FOR DELETE TO {{far}} USING ({rows})",
    }
