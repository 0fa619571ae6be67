"""The database role of a worker that has joined: it writes its own row and those of the jobs that it holds alone."""

from collections import defaultdict
from contextlib import suppress

import psycopg
import pytest
from psycopg.errors import DataError, InsufficientPrivilege
from sqlalchemy import insert

from core.db import migrations, turns, worker_role
from core.db.database import Database, now
from core.db.models.jobs import Worker
from core.jobs import lifecycle
from core.jobs.scheduling import claims
from core.jobs.scheduling.claims import WorkerOffer
from core.jobs.scheduling.port_allocations import PortRange
from core.security import worker_logins, worker_tokens
from core.settings import Settings

MAY_UPDATE = {
    "attempts": "allocation artifact_bytes diverged ended_at exit_code gpus image_digest log_bytes mean_cpu_percent "
    "mean_gpu_percent mean_host_cpu_percent peak_cpu_percent peak_gpu_memory_bytes peak_gpu_percent peak_memory_bytes "
    "reason reason_detail sampled_seconds started_at",
    "job_params": "number text",
    "jobs": "artifacts_state ended_at exit_code finished_at handle heartbeat_at host image_digest lease machine_faults "
    "phase phase_detail reason reason_detail run_after started_at state worker",
    "last_metrics": "value",
    "leader_leases": "holder until",
    "repair_counts": "last_at last_worker total",
    "resources": "billed_at billed_until deleting_at detail gone_at health operation price_per_hour seen_at state",
    "workers": "backends boot_id cpus gpu_faults gpus low_disk machine_types memory_mb nodes_address refusal "
    "seen_at slots started_at taken_gpus",
}
MAY_INSERT = "events installation job_params last_metrics leader_leases metrics outbox repair_counts resources"
MAY_DELETE = "gpu_allocations installation job_logins port_allocations port_requests"
MAY_NOT_READ = (
    "api_keys changes git_logins identities job_logins notification_deliveries notification_receivers "
    "one_time_tokens pending_deletions project_members registries saved_views secrets sessions ssh_keys "
    "user_keys users worker_tokens"
)
OF_JOBS = ("attempts", "gpu_allocations", "job_params", "jobs", "last_metrics", "port_allocations", "port_requests")


WORKER, EVENT = "name, host, boot_id, backends, slots, started_at, seen_at", "job_id, at, kind, attempt, lease, actor"
ATTACKS = (
    "UPDATE jobs SET worker = 'b' WHERE worker = 'a'",
    "UPDATE jobs SET worker = NULL WHERE worker = 'a'",
    "UPDATE jobs SET submitted_by = 'mallory' WHERE worker = 'a'",
    "UPDATE jobs SET spec = '{}' WHERE worker = 'a'",
    "UPDATE jobs SET project_id = 'other' WHERE worker = 'a'",
    "UPDATE jobs SET attempt = 9 WHERE worker = 'a'",
    "UPDATE jobs SET deleted_at = now() WHERE worker = 'a'",
    "UPDATE jobs SET priority = 100 WHERE worker = 'a'",
    "UPDATE attempts SET worker = 'a'",
    "UPDATE workers SET drained_at = NULL",
    "UPDATE workers SET name = 'b' WHERE name = 'a'",
    "UPDATE workers SET host = 'host-b' WHERE name = 'a'",
    f"INSERT INTO workers ({WORKER}) VALUES ('c', 'c', '', '[]', 1, now(), now())",  # noqa: S608 - of columns
    f"INSERT INTO events ({EVENT}) SELECT id, now(), 'stop_requested', 1, 1, 'alice' FROM jobs WHERE worker = 'a'",  # noqa: S608
    "INSERT INTO installation VALUES ('home-mark', 'x')",
    "INSERT INTO leader_leases VALUES ('sweep', 'a', now())",
    "INSERT INTO outbox (kind, job_id, created_at) VALUES ('other', 'j', now())",
    "SELECT sealed FROM job_logins",
    "DELETE FROM job_dependencies",
    "DELETE FROM events",
    "TRUNCATE jobs",
    "CREATE TABLE public.t (i int)",
    "CREATE TEMPORARY TABLE t (i int)",
    "SELECT lo_create(0)",
    "SELECT lo_creat(0)",
    "SELECT lo_from_bytea(0, '')",
    "INSERT INTO leader_leases VALUES ('claims', 'a', now())",
    "SET SESSION AUTHORIZATION gradient",
    "SET ROLE {shared}",
    "ALTER TABLE jobs DISABLE ROW LEVEL SECURITY",
    "CREATE OR REPLACE FUNCTION worker_of_login() RETURNS text LANGUAGE sql AS $$ SELECT 'b' $$",
)


@pytest.fixture
def migrated(postgres):
    """A database of an older PostgreSQL, in which everybody may create tables."""
    url = postgres.new_database()
    database = Database(url)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("GRANT CREATE ON SCHEMA public TO PUBLIC")
    migrations.upgrade(database)
    name = database.engine.url.database
    shared = url.replace("postgresql://gradient@", f"postgresql://worker_{name}:password@")
    worker_role.create(database, shared)
    yield database, Settings(database={"url": url, "worker_url": shared})
    database.close()


@pytest.fixture
def database(migrated):
    return migrated[0]


@pytest.fixture
def join(migrated):
    """Return a connection of a worker that has joined."""
    database, settings = migrated
    opened = []

    def join(worker):
        with database.write() as session:
            worker_tokens.create(session, worker)
            url = worker_logins.create(session, settings, worker)["GRADIENT_DATABASE__URL"]
            values = {"boot_id": "b", "backends": ["process"], "slots": 1, "started_at": now(), "seen_at": now()}
            session.execute(insert(Worker).values(name=worker, host=f"host-{worker}", **values))
        opened.append(psycopg.connect(url, autocommit=True))
        return opened[-1]

    yield join
    for connection in opened:
        connection.close()


@pytest.fixture
def claimed(database, submit):
    """Claim a job with rows in many tables for a worker."""

    def claim(worker):
        submit("true", ports=("8080",), params={"lr": 1.0}, machine="V100")
        ports = PortRange(20_000, 20_999, "")
        offer = WorkerOffer(worker, f"host-{worker}", ("process",), gpus=("0", "1"), ports=ports)
        with database.write() as session:
            job = claims.claim(session, offer)
            connection = session.connection()
            connection.exec_driver_sql("INSERT INTO last_metrics VALUES (%s, 'loss', 1)", (job.id,))
            connection.exec_driver_sql("INSERT INTO port_requests VALUES (9000, %s)", (job.id,))
        return job

    return claim


def changed(connection, statement, *values):
    return connection.execute(statement, values).rowcount


def test_what_it_may_change_is_listed_in_full(database, join):
    join("a")
    role = worker_role.far_role(f"worker_{database.engine.url.database}")
    columns, tables = defaultdict(lambda: defaultdict(set)), defaultdict(set)
    with psycopg.connect(str(database.engine.url).replace("+psycopg", ""), autocommit=True) as admin:
        rights = "SELECT table_name, column_name, privilege_type FROM information_schema.column_privileges "
        for table, column, right in admin.execute(rights + "WHERE grantee = %s", [role]):
            columns[right][table].add(column)
        rights = "SELECT table_name, privilege_type FROM information_schema.table_privileges WHERE grantee = %s"
        for table, right in admin.execute(rights, [role]):
            tables[right].add(table)
        [unlimited] = admin.execute(
            "SELECT array_agg(relname) FROM pg_class WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace "
            "AND NOT relrowsecurity"
        ).fetchone()
        [all_tables] = admin.execute(
            "SELECT array_agg(tablename::text) FROM pg_tables WHERE schemaname = 'public'"
        ).fetchone()
    assert {table: " ".join(sorted(names)) for table, names in columns["UPDATE"].items()} == MAY_UPDATE
    assert " ".join(sorted(tables["INSERT"])) == MAY_INSERT
    assert " ".join(sorted(tables["DELETE"])) == MAY_DELETE
    assert {*tables} == {"SELECT", "INSERT", "DELETE"}
    assert " ".join(sorted({*all_tables} - tables["SELECT"])) == MAY_NOT_READ
    assert {*MAY_UPDATE, *MAY_INSERT.split(), *MAY_DELETE.split()} & {*unlimited} == set(), "its rows are limited"


def test_it_changes_rows_of_its_own_jobs_alone(join, claimed):
    a, _b = join("a"), join("b")
    mine, other = claimed("a"), claimed("b")
    for table in OF_JOBS:
        key = "id" if table == "jobs" else "job_id"
        column = MAY_UPDATE[table].split()[0] if table in MAY_UPDATE else None
        change = f"UPDATE {table} SET {column} = {column}" if column else f"DELETE FROM {table}"  # noqa: S608 - of names
        assert changed(a, f"{change} WHERE {key} = %s", other.id) == 0, table
        assert changed(a, f"{change} WHERE {key} = %s", mine.id) == 1, table
    add = {
        "events": "INSERT INTO events (job_id, at, kind, attempt, lease) VALUES (%s, now(), 'note', 1, 1)",
        "metrics": "INSERT INTO metrics VALUES (%s, 1, 'job', 0, 1, now(), '{}')",
        "job_params": "INSERT INTO job_params VALUES (%s, 'x', 1, NULL)",
        "last_metrics": "INSERT INTO last_metrics VALUES (%s, 'x', 1)",
    }
    for statement in add.values():
        with pytest.raises(InsufficientPrivilege, match="row-level security"):
            a.execute(statement, [other.id])
        a.execute(statement, [mine.id])
    assert changed(a, "UPDATE workers SET seen_at = now()") == 1


def test_what_it_may_not_do(database, join, claimed):
    a = join("a")
    claimed("a")
    refused = []
    for attack in ATTACKS:
        try:
            a.execute(attack.replace("{shared}", f"worker_{database.engine.url.database}"))
        except InsufficientPrivilege:
            refused.append(attack)
    assert refused == list(ATTACKS)


def test_a_job_that_waits_has_ended_or_is_held_by_another_worker_is_out_of_reach(database, join, claimed, submit):
    a = join("a")
    ended, waiting = claimed("a"), submit("true")
    with database.write() as session:
        finishing = lifecycle.mark_finishing(session, ended, "completed", exit_code=0)
        lifecycle.finish(session, finishing, artifacts_state="none")
    assert changed(a, "UPDATE jobs SET worker = 'a', state = 'running', lease = lease + 1") == 0
    assert a.execute("SELECT count(*) FROM jobs WHERE id IN (%s, %s)", [ended.id, waiting.id]).fetchone() == (2,)


def test_a_login_whose_token_is_gone_changes_nothing(database, join, claimed):
    a = join("a")
    claimed("a")
    with database.write() as session:
        worker_tokens.revoke(session, "a")
    assert changed(a, "UPDATE jobs SET lease = lease") == 0
    assert changed(a, "UPDATE workers SET seen_at = now()") == 0


def test_the_rights_are_given_again_without_locking_the_tables(migrated, join, claimed):
    database, settings = migrated
    a, tables = join("a"), ", ".join([*OF_JOBS, "workers"])
    claimed("a")
    with database.write() as session:
        lost = f"REVOKE ALL ON {tables} FROM {worker_role.far_role(f'worker_{database.engine.url.database}')}"
        session.connection().exec_driver_sql(lost)
    with pytest.raises(InsufficientPrivilege):
        a.execute("UPDATE workers SET seen_at = now()")
    with database.read() as session:
        session.connection().exec_driver_sql("SELECT count(*) FROM jobs")
        impatient = Database(f"{settings.database.url}&options=-c%20lock_timeout=5s")
        worker_role.create(impatient, settings.database.worker_url)
        impatient.close()
        assert changed(a, "UPDATE workers SET seen_at = now()") == 1
        assert changed(a, "UPDATE jobs SET heartbeat_at = now()") == 1


MALFORMED = (
    "UPDATE jobs SET host = 'host-b'",
    "UPDATE jobs SET state = 'bogus'",
    "UPDATE jobs SET artifacts_state = 'bogus'",
    "UPDATE jobs SET reason = 'bogus'",
    "UPDATE jobs SET lease = 2147483647",
    "UPDATE jobs SET lease = lease - 1",
    "UPDATE jobs SET machine_faults = 2147483647",
    "UPDATE jobs SET started_at = 'infinity'",
    "UPDATE jobs SET heartbeat_at = '2999-01-01'",
    "UPDATE jobs SET ended_at = '0044-03-15 BC'",
    "UPDATE jobs SET handle = '[1]'",
    'UPDATE jobs SET handle = \'{"sandboxed": "yes"}\'',
    "UPDATE attempts SET ended_at = 'infinity'",
    "UPDATE attempts SET reason = 'bogus'",
    "UPDATE attempts SET gpus = '{\"a\": 1}'",
    "UPDATE attempts SET gpus = '[1]'",
    'UPDATE attempts SET gpus = \'[{"memory": "all"}]\'',
    "UPDATE attempts SET gpus = '[{\"uuid\": 1}]'",
    "UPDATE attempts SET allocation = '[]'",
    "UPDATE attempts SET allocation = '{}'",
    "UPDATE attempts SET log_bytes = -1",
    "UPDATE attempts SET mean_cpu_percent = 'NaN'",
    "UPDATE attempts SET sampled_seconds = 'Infinity'",
    "UPDATE workers SET seen_at = 'infinity'",
    "UPDATE workers SET seen_at = '2999-01-01'",
    "UPDATE workers SET backends = '5'",
    "UPDATE workers SET backends = '[5]'",
    "UPDATE workers SET gpus = '{\"a\": 1}'",
    "UPDATE workers SET taken_gpus = '{\"a\": 1}'",
    "UPDATE workers SET gpu_faults = '{\"a\": 1}'",
    "UPDATE workers SET machine_types = 'null'",
    "UPDATE workers SET cpus = 'NaN'",
    "UPDATE workers SET slots = -1",
    "INSERT INTO last_metrics SELECT id, 'x', 'NaN' FROM jobs",
    "INSERT INTO metrics SELECT id, 1, 'job', 7, 1, 'infinity', '{}' FROM jobs",
    "INSERT INTO metrics SELECT id, 1, 'job', 7, 1, now(), '{\"a\": \"b\"}' FROM jobs",
    "INSERT INTO metrics SELECT id, 1, 'job', 7, 1, now(), '[]' FROM jobs",
    "INSERT INTO outbox (kind, job_id, created_at) VALUES ('wake', 'j', 'infinity')",
    "INSERT INTO repair_counts VALUES ('strays', 9223372036854775807, now(), 'a')",
    "INSERT INTO leader_leases VALUES ('clouds', 'a', 'infinity')",
    "UPDATE jobs SET phase_detail = repeat('x', 5000000)",
    "UPDATE jobs SET handle = json_build_object('a', repeat('x', 5000000))",
    "UPDATE workers SET refusal = repeat('x', 1000000)",
    "UPDATE workers SET machine_types = (SELECT json_agg(md5(n::text)) FROM generate_series(1, 20000) n)",
)
SOUND = (
    "UPDATE jobs SET lease = lease + 1, machine_faults = machine_faults + 1, started_at = now(), ended_at = NULL",
    "UPDATE jobs SET handle = '{\"sandboxed\": true}', reason = 'completed', artifacts_state = 'partial'",
    'UPDATE attempts SET gpus = \'[{"index": 0, "uuid": "u", "memory": 1, "driver": null}]\', log_bytes = 5',
    'UPDATE attempts SET allocation = \'{"zone": "z", "name": "n", "type": "t", "url": null}\', reason = \'disk_full\'',
    "UPDATE workers SET gpus = '[\"0\"]', backends = '[]', gpu_faults = '{\"0\": \"X\"}', machine_types = NULL",
    'INSERT INTO metrics SELECT id, 1, \'job\', 7, 1, now(), \'{"a": "NaN", "b": 1e3}\' FROM jobs',
    "INSERT INTO repair_counts VALUES ('strays', 3, now(), 'a')",
    "UPDATE repair_counts SET total = total + 2",
    "UPDATE jobs SET state = 'queued', worker = NULL, host = NULL, handle = NULL",
)


def test_values_that_others_cannot_read_are_refused(join, claimed):
    a = join("a")
    claimed("a")
    accepted = []
    for statement in MALFORMED:
        with suppress(InsufficientPrivilege, DataError):
            a.execute(statement)
            accepted.append(statement)
    assert accepted == []
    for statement in SOUND:
        assert changed(a, statement) == 1, statement


def test_a_job_of_a_worker_that_has_joined_is_adopted_by_no_other_on_a_host_of_its_name(database, join, claimed):
    a = join("a")
    claimed("a")
    assert changed(a, "UPDATE jobs SET heartbeat_at = '2000-01-01', state = 'running', handle = '{}'") == 1

    def adopt(worker):
        with database.write() as session:
            return lifecycle.adopt(session, worker, "host-a", backends=["process"], stale_seconds=60)

    assert adopt("other") == []
    assert len(adopt("a")) == 1


def test_no_lock_that_it_may_hold_stops_the_claims_of_others_and_their_submissions(database, join, claimed):
    a, _b = join("a"), join("b")
    claimed("b")
    with database.write() as session:
        turns.take_turn(session, "submissions")
    with pytest.raises(InsufficientPrivilege), a.transaction():
        a.execute("LOCK TABLE leader_leases IN EXCLUSIVE MODE")
    with a.transaction():
        a.execute("SELECT pg_advisory_lock(number) FROM unnest(ARRAY[1735549284, 1735549285]) AS number")
        assert a.execute("SELECT name FROM leader_leases WHERE name <> 'clouds' FOR UPDATE").fetchall() == []
        assert claimed("b").worker == "b"
        with database.write() as session:
            turns.take_turn(session, "submissions")


def test_it_has_a_limited_number_of_connections(join):
    a = join("a")
    [limit] = a.execute("SELECT rolconnlimit FROM pg_roles WHERE rolname = session_user").fetchone()
    assert 25 < limit < 100
