"""The doctor: each finding is provoked for real, and looking changes nothing."""

import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
from alembic import command
from sqlalchemy import update

from core.db import migrations
from core.db.database import Database, now
from core.db.models.jobs import Job
from core.formatting import GIB
from core.jobs.scheduling import claims, workers
from core.jobs.scheduling.claims import WorkerOffer
from core.security import credentials
from core.security.credentials import ALL_PROJECTS
from core.security.encryption import Vault
from core.settings import Settings
from core.settings.database import DatabaseSettings
from core.settings.worker import ProcessSettings, WorkerSettings
from gradient_server.checks import database as database_checks
from gradient_server.checks.finding import Status
from gradient_server.commands import doctor
from gradient_server.home import require_home
from gradient_server.local_key import ensure_local_key
from gradient_server.main import main

pytestmark = pytest.mark.integration

OK, WARNING, PROBLEM = Status.OK, Status.WARNING, Status.PROBLEM


class Usage(NamedTuple):
    total: int
    used: int
    free: int


@pytest.fixture
def settings(database, tmp_path):
    """An installation in order, over each kind of database; nobody has started it yet."""
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    home.chmod(0o700)
    settings = Settings(home=home, database=DatabaseSettings(url=database.url), process=ProcessSettings())
    ensure_local_key(home / "cli.json", settings.public_url, database)
    require_home(settings, database, mark=True)
    return settings


@pytest.fixture
def embedded(tmp_path):
    """An installation in order, over SQLite in its own folder."""
    home = tmp_path / "embedded"
    home.mkdir(mode=0o700)
    settings = Settings(home=home)
    database = Database(settings.database_url)
    migrations.upgrade(database)
    ensure_local_key(home / "cli.json", settings.public_url, database)
    database.close()
    return settings


@pytest.fixture
def room(monkeypatch):
    """Enough room on the disk, wherever the tests run; a function that sets how much."""

    def set_room(free, total=500 * GIB):
        monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(total, total - free, free))

    set_room(200 * GIB)
    return set_room


def found(settings, check):
    """The one finding of a check."""
    (finding,) = [finding for finding in doctor.run_checks(settings) if finding.check == check]
    assert finding.message.endswith(".")
    assert (finding.fix is None) == (finding.status is OK)
    return finding


def register(database, backends=("process",)):
    with database.write() as session:
        workers.register(session, WorkerOffer("w", "h", tuple(backends)), boot_id="b", slots=2)


def change(database, table, **values):
    with database.write() as session:
        session.execute(update(table).values(**values))


# ---- All together


@pytest.mark.usefixtures("control_groups")
def test_an_installation_in_order(settings, database, room, capsys):
    room(200 * GIB)
    register(database)
    findings = doctor.run_checks(settings)
    # The tests' PostgreSQL is told to forget what it has committed, and that is found.
    expected = {OK} if database.is_sqlite else {OK, WARNING}
    assert {finding.status for finding in findings} == expected
    assert len(findings) > 8
    assert doctor.run(settings, as_json=False) == 0
    last = "0 problems, 0 warnings." if database.is_sqlite else "0 problems, 1 warning."
    assert capsys.readouterr().out.splitlines()[-1] == last


@pytest.mark.usefixtures("control_groups")
def test_problems_come_first_and_what_is_right_is_named_alone(settings, room, capsys):
    room(200 * GIB)
    settings.home.chmod(0o777)
    findings = doctor.run_checks(settings)  # no worker: a warning
    doctor.run(settings, as_json=False)
    lines = capsys.readouterr().out.splitlines()
    shown = [line.split()[0] for line in lines if line[:1].strip()]
    assert shown[:-1] == sorted(shown[:-1], key=[PROBLEM, WARNING, OK].index)
    assert shown.count(OK) == 1
    assert {"problem", "warning"} & set(shown)
    doctor.run(settings, as_json=False, all_lines=True)
    lines = capsys.readouterr().out.splitlines()
    assert sum(line.startswith(f"{OK} ") for line in lines) == sum(finding.status is OK for finding in findings)


def test_looking_changes_nothing(embedded, room, capsys):
    room(200 * GIB)
    before = contents(embedded.root)
    assert doctor.run(embedded, as_json=True) == 0
    assert contents(embedded.root) == before
    assert json.loads(capsys.readouterr().out)["status"] == "warning"  # no worker


def contents(folder):
    return {path.name: (path.stat().st_mode, path.stat().st_mtime_ns, path.read_bytes()) for path in folder.iterdir()}


def test_the_command_over_a_service_that_runs(deployment):
    deployment.start_up()
    before = (deployment.home / "gradient.db").stat().st_size
    env = {k: v for k, v in os.environ.items() if not k.startswith("GRADIENT_")}
    done = subprocess.run(
        [Path(sys.executable).parent / "gradient-server", "doctor", "--json"],
        env=env | {"GRADIENT_HOME": str(deployment.home)},
        capture_output=True,
        text=True,
        check=False,
    )
    findings = {one["check"]: one for one in json.loads(done.stdout)["findings"]}
    assert findings["worker"]["status"] == "ok"
    assert "offers process" in findings["worker"]["message"]
    assert [check for check, one in findings.items() if one["status"] == "problem"] == []
    assert done.returncode == 0
    assert done.stderr == ""
    assert (deployment.home / "gradient.db").stat().st_size >= before


def test_every_check_is_documented():
    root = Path(doctor.__file__).parents[2]
    source = "".join(path.read_text() for path in (root / "gradient_server").rglob("*.py"))
    checks = set(re.findall(r'\b(?:ok|warning|problem)\(\s*"(\w+)"', source))
    assert len(checks) > 12
    text = (root / "docs" / "operating.md").read_text()
    assert [check for check in sorted(checks) if f"`{check}`" not in text] == []


# ---- The machine


def test_a_home_that_is_not_there_is_not_made(tmp_path):
    settings = Settings(home=tmp_path / "nowhere")
    assert found(settings, "home").status is PROBLEM
    assert found(settings, "database").status is PROBLEM
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize(("mode", "status"), [(0o700, OK), (0o750, WARNING), (0o705, WARNING), (0o777, PROBLEM)])
def test_who_may_look_into_the_home(embedded, mode, status):
    embedded.root.chmod(mode)
    finding = found(embedded, "home")
    assert finding.status is status
    assert status is OK or f"chmod 700 {embedded.root}" in finding.fix


@pytest.mark.parametrize(
    ("free", "total", "status"),
    [(60, 500, OK), (40, 500, WARNING), (15, 100, WARNING), (0.9, 100, PROBLEM), (25, 100, OK)],
)
def test_room_on_the_disk(embedded, room, free, total, status):
    room(int(free * GIB), total * GIB)
    assert found(embedded, "disk").status is status


def test_stores_on_two_file_systems(embedded):
    (embedded.root / "attempts").mkdir()
    (embedded.root / "artifacts").symlink_to("/dev/shm")
    assert found(embedded, "links").status is WARNING


# ---- Database and broker


def test_a_database_that_does_not_answer(tmp_path):
    url = "postgresql://someone:secret-word@127.0.0.1:9/nothing"
    finding = found(Settings(home=tmp_path, database=DatabaseSettings(url=url)), "database")
    assert finding.status is PROBLEM
    assert "refused" in finding.message
    assert "secret-word" not in finding.message


@pytest.mark.parametrize(
    "url", ["my database", "mysql://me:secret-word@host/name", "postgresql://host:not-a-port/name"]
)
def test_an_address_that_is_none_is_refused_before_anything_is_done(url, monkeypatch, capsys):
    monkeypatch.setenv("GRADIENT_DATABASE__URL", url)
    assert main(["doctor"]) == 2
    said = capsys.readouterr().err
    assert "GRADIENT_DATABASE__URL" in said
    assert "secret-word" not in said


def test_a_file_that_is_no_database(embedded):
    (embedded.root / "gradient.db").write_bytes(b"this is text, not a database" * 100)
    finding = found(embedded, "database")
    assert (finding.status, "not a database" in finding.message) == (PROBLEM, True)


def test_sqlite_without_wal(embedded):
    assert "WAL" in found(embedded, "database").message
    connection = sqlite3.connect(embedded.root / "gradient.db")
    connection.execute("PRAGMA journal_mode=DELETE")
    connection.close()
    finding = found(embedded, "database")
    assert (finding.status, "journal mode delete" in finding.message) == (WARNING, True)


def test_postgresql_that_may_forget(postgres, tmp_path):
    settings = Settings(home=tmp_path, database=DatabaseSettings(url=postgres.new_database()))
    finding = found(settings, "database")
    assert finding.status is WARNING
    assert "fsync off" in finding.message
    assert "fsync = on" in finding.fix


def test_an_outdated_schema_stops_the_looking(settings, database):
    assert found(settings, "migrations").status is OK
    with database.engine.execution_options(gradient_write=True).begin() as connection:
        command.stamp(migrations.configuration(connection), "base")
    finding = found(settings, "migrations")
    assert (finding.status, "gradient-server migrate" in finding.fix) == (PROBLEM, True)
    assert "queue" not in {finding.check for finding in doctor.run_checks(settings)}


def test_clocks_that_differ(settings, monkeypatch):
    there = database_checks.time.time
    monkeypatch.setattr(database_checks.time, "time", lambda: there() + 300)
    finding = found(settings, "clock")
    assert (finding.status, bool(re.search(r"are (4 min 5|5 min 0)\d s apart", finding.message))) == (WARNING, True)


# ---- The record


def test_jobs_that_no_worker_takes(settings, database, submit):
    submit()
    change(database, Job, created_at=now(-7200))
    register(database, ["docker"])
    finding = found(settings, "queue")
    assert finding.status is PROBLEM
    assert "1 for CPU (backend process); the oldest has waited for 2 h 00 min" in finding.message
    register(database)
    assert found(settings, "queue").status is OK


def test_jobs_that_are_silent(settings, database, submit):
    job = submit()
    with database.write() as session:
        claims.claim(session, WorkerOffer("w", "far", ("process",)))
    assert found(settings, "leases").status is OK
    change(database, Job, heartbeat_at=now(-61))
    finding = found(settings, "leases")
    assert (finding.status, f"{job.id} (worker w on far)" in finding.message) == (PROBLEM, True)
    longer = settings.model_copy(update={"worker": WorkerSettings(lease_seconds=120)})
    assert found(longer, "leases").status is OK


def test_secrets_that_cannot_be_read(settings, database):
    assert "0 secrets" in found(settings, "secrets").message
    with database.write() as session:
        credentials.put_secret(session, Vault(settings), ALL_PROJECTS, "wandb", "canary")
        credentials.put_registry(session, Vault(settings), ALL_PROJECTS, "ghcr.io", "alice", "canary")
    finding = found(settings, "secrets")
    assert (finding.status, finding.message[:2]) == (OK, "2 ")
    (settings.root / "secrets.key").unlink()
    finding = found(settings, "secrets")
    assert finding.status is PROBLEM
    assert "secret wandb" in finding.message
    assert "registry ghcr.io" in finding.message
    assert str(settings.root / "secrets.key") in finding.fix
    assert not (settings.root / "secrets.key").exists()
