"""The commands of docs/deploy.md bring a service back from its backup, over PostgreSQL and over SQLite."""

import os
import shutil
import subprocess

import pytest
from support.backups import (
    BACK_UP_SQLITE,
    BACKUPS,
    RESTORE_POSTGRES,
    RESTORE_SQLITE,
    run_shell,
    shell_environment,
)
from support.deployment import Deployment

pytestmark = pytest.mark.timeout(240)


def shell(command, folder, service):
    done = run_shell(command, folder, shell_environment(service))
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def sqlite3_program():
    """Without SQLite's program, tests/conftest.py does not run the test."""
    return shutil.which("sqlite3")


@pytest.fixture
def backup(tmp_path):
    """The folder that the backup is in."""
    folder = tmp_path / "backup"
    folder.mkdir()
    return folder


@pytest.fixture
def deploy(tmp_path):
    """Makes services, which end with the test."""
    made = []

    def new(name, **settings):
        made.append(Deployment(tmp_path / name, **settings))
        return made[-1]

    yield new
    for service in made:
        service.stop()


def start(service):
    return [service.start_api(), service.start_worker()]


class Jobs:
    """A job that ended before the backup of the database, and one that waited for a worker then and ran afterwards.

    Args:
        folder: Has a file whose content they print and leave as an artifact.
    """

    def __init__(self, service, folder):
        self._text = folder / "text"
        self._text.write_text("first")
        self._command = f'cat {self._text}; cp {self._text} "$GRADIENT_ARTIFACTS_DIR/model"'
        self.ended = self.run(service)

    def run(self, service):
        job_id = service.submit(self._command)
        service.wait_ended(job_id)
        return job_id

    def wait(self, service):
        self.waiting = service.submit(self._command)

    def check(self, service):
        """Check every log and artifact after the restore, of a waiting job that runs again, too."""
        assert service.job(self.ended)["state"] == "Stopped"
        assert service.raw_log(self.ended) == b"first"
        assert service.artifact(self.ended, "model") == b"first"
        self._text.write_text("second")
        service.start_worker()
        assert service.wait_ended(self.waiting)["attempt"] == 2
        assert service.raw_log(self.waiting) == b"first\nsecond"
        assert [service.artifact(self.waiting, f"model?attempt={number}") for number in (1, 2)] == [b"first", b"second"]


def back_up(service, back_up_database, folder):
    """Back up the database and then the files, while a job runs that waits for a worker in the backup."""
    api, worker = start(service)
    jobs = Jobs(service, folder)
    worker.kill()
    jobs.wait(service)
    shell(back_up_database, folder, service)
    worker = service.start_worker()
    service.wait_ended(jobs.waiting)
    shell(BACKUPS["files"], folder, service)
    return jobs, [api, worker]


def test_a_restored_service_has_every_job_log_and_artifact(deploy, backup, postgres):
    before, after = (deploy(name, GRADIENT_DATABASE__URL=postgres.new_database()) for name in ("before", "after"))
    before.migrate()
    jobs, _ = back_up(before, BACKUPS["PostgreSQL"], backup)
    before.stop()
    after.home.mkdir()
    assert "1 job changed" in shell(RESTORE_POSTGRES, backup, after)
    assert "0 jobs changed" in shell("gradient-server reconcile", backup, after)
    after.start_api()
    jobs.check(after)


def test_the_database_of_a_home_by_default_is_backed_up_and_of_a_wrong_one_is_not(tmp_path, backup, sqlite3_program):
    """Of a home without a database, SQLite's program would make an empty copy without an error."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("GRADIENT_")}
    env |= {"HOME": str(tmp_path)}
    copy = backup / "gradient-copy.db"
    assert run_shell(BACK_UP_SQLITE, backup, env).returncode != 0
    assert not copy.exists()
    database = tmp_path / ".gradient-jobs" / "gradient.db"
    database.parent.mkdir()
    subprocess.run([sqlite3_program, database, "CREATE TABLE t (a)"], check=True)
    assert run_shell(BACK_UP_SQLITE, backup, env).returncode == 0
    assert copy.stat().st_size


@pytest.mark.parametrize("block", [RESTORE_POSTGRES, RESTORE_SQLITE], ids=["postgresql", "sqlite"])
def test_nothing_is_restored_without_a_backup_or_the_settings_of_the_service(tmp_path, backup, block):
    env = {name: value for name, value in os.environ.items() if not name.startswith("GRADIENT_")}
    assert run_shell(block, backup, env | {"HOME": str(tmp_path)}).returncode != 0
    assert not (tmp_path / ".gradient-jobs").exists()


def test_a_restore_over_sqlite_is_not_mixed_with_the_database_that_it_replaces(deploy, backup, sqlite3_program):
    service = deploy("home")
    jobs, processes = back_up(service, BACK_UP_SQLITE, backup)
    later = jobs.run(service)
    for process in processes:
        process.kill()
    assert (service.home / "gradient.db-wal").stat().st_size, "changes that are not in gradient.db yet"
    assert "1 job changed" in shell(RESTORE_SQLITE, backup, service)
    service.start_api()
    assert service.request("GET", f"/jobs/{later}").status_code == 404, "it is newer than the backup"
    jobs.check(service)
    assert shell(f"{sqlite3_program} $GRADIENT_HOME/gradient.db 'PRAGMA integrity_check'", backup, service) == "ok\n"
    assert "gradient.db" not in shell("tar -tf stores.tar", backup, service)
