"""The commands of docs/deploy.md bring a service back from its backup, over PostgreSQL."""

import os
import subprocess

import pytest
from support.deployment import Deployment
from support.servers.postgres import find_binaries

pytestmark = pytest.mark.timeout(240)


def shell(command, folder, **env):
    path = f"{find_binaries()}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-euc", command],
        cwd=folder,
        env=os.environ | {"PATH": path} | env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.fixture
def services(tmp_path, postgres):
    """The one that is lost, and the one that takes its place."""
    pair = [Deployment(tmp_path / name, GRADIENT_DATABASE__URL=postgres.new_database()) for name in ("before", "after")]
    yield pair
    for service in pair:
        service.stop()


def test_a_restored_service_has_every_job_log_and_artifact(tmp_path, services):
    before, after = services
    backup = tmp_path / "backup"
    backup.mkdir()
    before.migrate()
    before.start_api()
    before.start_worker()
    job_id = before.submit('echo trained; printf weights >"$GRADIENT_ARTIFACTS_DIR/model"')
    before.wait_ended(job_id)
    shell(
        'pg_dump --format=custom --file=gradient.dump "$URL" && '
        'tar --exclude=./attempts -C "$GRADIENT_HOME" -cf stores.tar .',
        backup,
        URL=before.database_url,
        GRADIENT_HOME=str(before.home),
    )
    before.stop()
    after.home.mkdir()
    shell(
        'pg_restore --clean --if-exists --no-owner --single-transaction --dbname="$URL" gradient.dump && '
        'tar -C "$GRADIENT_HOME" -xpf stores.tar',
        backup,
        URL=after.database_url,
        GRADIENT_HOME=str(after.home),
    )
    after.migrate()
    after.start_api()
    assert after.job(job_id)["state"] == "Stopped"
    assert after.raw_log(job_id) == b"trained\n"
    assert after.artifact(job_id, "model") == b"weights"
