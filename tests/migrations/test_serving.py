"""Releases that may run on a database: declared by the newer release, obeyed by the older one."""

import logging
import threading
import time

import pytest
from sqlalchemy import select, text, update
from support.deployment import wait_until
from support.releases import (
    COMPATIBLE_STEP,
    HEAD_REVISION,
    NEXT_REVISION,
    REVISIONS,
    ReleaseStep,
    act_as_release,
    describe_schema,
    make_later_release,
)

from core.db import migrations, schema_check
from core.db.database import Database
from core.db.schema_check import SchemaInfo, SchemaStatus
from core.errors import DatabaseOutdated, ReleaseOutdated, StoreUnavailable
from gradient_server.checks import database as database_checks
from gradient_server.checks.finding import Status

NULLABLE = 'op.add_column("jobs", sa.Column("pool", sa.String(64)))'


@pytest.fixture
def later(tmp_path):
    """The migrations of the next release."""
    return make_later_release(tmp_path / "later", COMPATIBLE_STEP)


def told(database):
    with database.read() as session:
        return dict(session.execute(select(SchemaInfo.name, SchemaInfo.value)).all())


@pytest.fixture
def ahead(empty_database, tmp_path):
    """A function that takes the database to the next release, which serves code from a revision on."""

    def take(serves=HEAD_REVISION):
        with act_as_release(make_later_release(tmp_path / "later", ReleaseStep(NULLABLE, serves=serves))):
            return migrations.upgrade(empty_database)

    return take


def test_an_upgrade_tells_which_releases_may_run(empty_database):
    assert migrations.upgrade(empty_database).status is SchemaStatus.CURRENT
    assert told(empty_database) == {"serves": migrations.list_migrations()[-1].module.serves}
    assert schema_check.check(empty_database).status is SchemaStatus.CURRENT


def test_a_database_one_release_ahead_is_accepted_with_a_warning(empty_database, ahead, caplog):
    ahead()
    with caplog.at_level(logging.WARNING):
        state = schema_check.check(empty_database)
    assert (state.status, state.found, state.needed) == (SchemaStatus.NEWER, NEXT_REVISION, HEAD_REVISION)
    (line,) = [record for record in caplog.records if record.message == "database_is_newer"]
    assert (line.found, line.known, "Upgrade this process" in line.fix) == (NEXT_REVISION, HEAD_REVISION, True)


def test_an_upgrade_by_an_older_release_that_is_served_changes_nothing(empty_database, ahead):
    ahead()
    before = describe_schema(empty_database)
    assert migrations.upgrade(empty_database).status is SchemaStatus.NEWER
    assert (describe_schema(empty_database), told(empty_database), schema_check.get_state(empty_database).found) == (
        before,
        {"serves": HEAD_REVISION},
        NEXT_REVISION,
    )


def test_a_release_that_is_not_served_is_refused_and_changes_nothing(empty_database, ahead):
    migrations.upgrade(empty_database)
    ahead(serves=NEXT_REVISION)
    before = describe_schema(empty_database)
    for refused in (schema_check.check, migrations.upgrade):
        with pytest.raises(ReleaseOutdated, match=rf"{NEXT_REVISION}.*newer.*{HEAD_REVISION}.*Install the release"):
            refused(empty_database)
    with pytest.raises(ReleaseOutdated, match="can migrate it back"):
        migrations.downgrade(empty_database, REVISIONS[0])
    assert describe_schema(empty_database) == before


def test_a_release_that_was_shut_out_stays_so(empty_database, tmp_path):
    """Whatever a later step says of itself."""
    with act_as_release(
        make_later_release(
            tmp_path / "later", ReleaseStep("pass", serves=NEXT_REVISION), ReleaseStep(NULLABLE, serves=HEAD_REVISION)
        )
    ):
        migrations.upgrade(empty_database)
    assert told(empty_database) == {"serves": NEXT_REVISION}
    with pytest.raises(ReleaseOutdated):
        schema_check.check(empty_database)


def test_a_newer_database_that_says_nothing_is_refused(empty_database):
    migrations.upgrade(empty_database)
    with empty_database.engine.execution_options(gradient_write=True).begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
        connection.execute(text("DROP TABLE schema_info"))
    with pytest.raises(ReleaseOutdated, match="9999"):
        migrations.upgrade(empty_database)


@pytest.mark.parametrize("revision", REVISIONS)
def test_an_older_database_is_refused_with_what_to_do(empty_database, revision, later):
    migrations.upgrade(empty_database, revision)
    with (
        act_as_release(later),
        pytest.raises(DatabaseOutdated, match=rf"is {revision}.*needs {NEXT_REVISION}.*backup.*server migrate"),
    ):
        schema_check.check(empty_database)


def test_the_way_back_leads_to_what_there_was(empty_database, later):
    with act_as_release(later):
        migrations.upgrade(empty_database)
        for nowhere in ("9999", "head", ""):
            with pytest.raises(
                DatabaseOutdated, match=f"can go back to {', '.join([NEXT_REVISION, *reversed(REVISIONS)])}"
            ):
                migrations.downgrade(empty_database, nowhere)
        state = migrations.downgrade(empty_database, HEAD_REVISION)
        assert (state.status, state.found) == (SchemaStatus.OLDER, HEAD_REVISION)
        with pytest.raises(DatabaseOutdated, match="cannot be migrated back"):
            migrations.downgrade(empty_database, NEXT_REVISION)
        assert migrations.upgrade(empty_database).status is SchemaStatus.CURRENT


def test_the_doctor_tells_the_cases_apart(empty_database, ahead, tmp_path):
    def finds():
        finding = database_checks.migrations(empty_database)
        return finding.status, finding.message, finding.fix or ""

    status, message, fix = finds()
    assert (status, "empty" in message, "gradient-server migrate" in fix) == (Status.PROBLEM, True, True)
    migrations.upgrade(empty_database)
    with act_as_release(make_later_release(tmp_path / "next", COMPATIBLE_STEP)):
        status, message, fix = finds()
    assert (status, HEAD_REVISION in message, "gradient-server migrate" in fix) == (Status.PROBLEM, True, True)
    assert finds() == (Status.OK, "The schema matches this release.", "")
    ahead()
    status, message, fix = finds()
    assert (status, "can still use it" in message, "Upgrade this process" in fix) == (Status.WARNING, True, True)
    with empty_database.engine.execution_options(gradient_write=True).begin() as connection:
        connection.execute(update(SchemaInfo).values(value=NEXT_REVISION))
    status, message, fix = finds()
    assert (status, "can no longer use it" in message, "Install the release" in fix) == (Status.PROBLEM, True, True)


# ---- Several at once, on PostgreSQL


@pytest.fixture
def on_postgres(postgres):
    database = Database(postgres.new_database())
    yield database
    database.close()


def waiting(database, kind):
    with database.engine.connect() as connection:
        query = "SELECT count(*) FROM pg_locks WHERE NOT granted AND locktype = :kind"
        return connection.scalar(text(query), {"kind": kind})


def test_a_step_may_take_long_between_two_statements(postgres, monkeypatch):
    monkeypatch.setattr("core.db.database._POSTGRES_OPTIONS", "-c idle_in_transaction_session_timeout=50ms")
    record = migrations._record_oldest_compatible

    def record_late(connection):
        time.sleep(0.3)
        record(connection)

    monkeypatch.setattr(migrations, "_record_oldest_compatible", record_late)
    database = Database(postgres.new_database())
    try:
        assert migrations.upgrade(database).found == HEAD_REVISION
    finally:
        database.close()


def test_upgrades_at_once_take_turns(on_postgres):
    """All of them are held at the gate; then one does it, and the others find it done."""
    found = []
    threads = [threading.Thread(target=lambda: found.append(migrations.upgrade(on_postgres).status)) for _ in range(3)]
    with on_postgres.engine.begin() as gate:
        gate.execute(text(f"SELECT pg_advisory_xact_lock({migrations._ADVISORY_LOCK})"))
        for thread in threads:
            thread.start()
        wait_until(lambda: waiting(on_postgres, "advisory") == 3, "three upgrades to wait")
    for thread in threads:
        thread.join(60)
    assert found == [SchemaStatus.CURRENT] * 3
    assert schema_check.check(on_postgres).found == HEAD_REVISION


def test_an_upgrade_lets_others_pass_until_it_gets_the_lock(on_postgres, monkeypatch, caplog, later):
    migrations.upgrade(on_postgres)
    monkeypatch.setattr(schema_check, "MIGRATIONS", later)
    monkeypatch.setattr(migrations, "_LOCK_SECONDS", 0.05)
    monkeypatch.setattr(migrations, "_PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(migrations, "_TRIES", 3)
    with on_postgres.engine.begin() as reader:
        reader.execute(text("SELECT 1 FROM jobs"))
        with pytest.raises(StoreUnavailable, match="kept a table locked"):
            migrations.upgrade(on_postgres)
        assert [record.message for record in caplog.records].count("migration_waits_for_lock") == 3
        assert schema_check.get_state(on_postgres).found == HEAD_REVISION
        monkeypatch.setattr(migrations, "_TRIES", 10_000)
        upgrade = threading.Thread(target=migrations.upgrade, args=[on_postgres])
        upgrade.start()
        wait_until(lambda: [record.message for record in caplog.records].count("migration_waits_for_lock") > 4, "tries")
    upgrade.join(60)
    assert schema_check.check(on_postgres).status is SchemaStatus.CURRENT
