"""`gradient-server prune`: says what goes, and a dry run leaves every byte as it was."""

import io
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.live_service import make_zip
from support.retention_jobs import RetentionJobs

from core.settings import Settings
from core.settings.database import DatabaseSettings
from core.settings.limits import RetentionSettings
from core.storage.retention import DAY_SECONDS
from core.storage.workspaces.limits import WorkspaceLimits
from gradient_server.commands.prune import outputs
from gradient_server.home import require_home
from worker.context import WorkerContext

pytestmark = pytest.mark.integration

PROGRAM = str(Path(sys.executable).parent / "gradient-server")


@pytest.fixture
def settings(database, tmp_path):
    retention = RetentionSettings(logs_days=30, workspaces_days=30)
    home = tmp_path / "home"
    home.mkdir()
    settings = Settings(home=home, database=DatabaseSettings(url=database.url), retention=retention)
    require_home(settings, database, mark=True)
    return settings


@pytest.fixture
def retention_jobs(settings, database, tmp_path):
    """An installation with something to remove in it: two logs, one job's artifacts, an archive."""
    host = WorkerContext.open(settings, database, worker_name="w", hostname="h")
    retention_jobs = RetentionJobs(host, tmp_path / "left")
    retention_jobs.create_job(40, project="vision", log=b"x" * 1500, files=["model"])
    retention_jobs.create_job(31, project="speech", log=b"y" * 500)
    retention_jobs.create_job(1, project="speech", log=b"y" * 500)
    retention_jobs.set_retention("vision", keep_artifacts_days=7)
    stored = host.workspaces.add(io.BytesIO(make_zip()), WorkspaceLimits())
    long_ago = time.time() - 50 * DAY_SECONDS
    os.utime(host.workspaces.path(stored.sha256), (long_ago, long_ago))
    return retention_jobs


def run(settings, capsys, *, dry_run=False, as_json=False):
    code = outputs.run(settings, dry_run=dry_run, as_json=as_json)
    return code, capsys.readouterr().out


@pytest.mark.usefixtures("retention_jobs")
def test_it_lists_by_project_what_it_removes(settings, capsys):
    code, text = run(settings, capsys)
    assert code == 0
    head, *rows, last = text.splitlines()
    assert head.split()[:4] == ["PROJECT", "WHAT", "COUNT", "BYTES"]
    found = [row.split()[:5] for row in rows]
    assert [row[:4] for row in found] == [
        ["speech", "logs", "1", "500"],
        ["vision", "logs", "1", "1.5"],
        ["vision", "artifacts", "1", "10"],
        ["(all)", "workspaces", "1", rows[3].split()[3]],
    ]
    assert "kept 30 days after the job's end by the service's settings" in rows[1]
    assert "kept 7 days after the job's end by its project's policy" in rows[2]
    assert last.startswith("Removed: 2 logs, 1 job's artifacts, 1 workspace (2.")
    assert run(settings, capsys) == (0, "Removed: nothing.\n")


def test_files_that_cannot_be_removed_are_said_and_fail_the_command(settings, retention_jobs, capsys, monkeypatch):
    def refuse(_self, _job_id):
        raise PermissionError(13, "not yours")

    with monkeypatch.context() as patched:
        patched.setattr(type(retention_jobs.stores.logs), "remove", refuse)
        code, text = run(settings, capsys)
    assert code == 1
    assert "Files of 2 removals could not be removed" in text
    _, dry = run(settings, capsys, dry_run=True)
    assert "Files of 2 earlier removals have not been removed yet." in dry
    code, text = run(settings, capsys)
    assert (code, "Files of 2 earlier removals had not been removed yet." in text) == (0, True)


def test_a_place_without_a_database_is_refused_and_stays_empty(tmp_path):
    for arguments in (["prune"], ["prune", "--dry-run"]):
        done = subprocess.run(
            [PROGRAM, *arguments],
            capture_output=True,
            text=True,
            check=False,
            env={"GRADIENT_HOME": str(tmp_path / "nowhere")},
        )
        assert done.returncode == 1
        assert done.stderr.startswith(f"error: There is no database at {tmp_path / 'nowhere'}")
    assert list(tmp_path.iterdir()) == []
