"""A worker with the database role of workers runs jobs to their end, and can make nobody an administrator."""

from urllib.parse import urlsplit

import psycopg
import pytest
from psycopg.errors import InsufficientPrivilege
from support.deployment import Deployment, wait_until

import core.db.models.changes
import core.db.models.comparisons
import core.db.models.metrics
import core.db.models.project_members
import core.db.models.saved_views
import core.db.models.schedules
import core.db.models.sweeps
import core.db.models.uploads
import core.jobs.cloud_resources  # noqa: F401 - these imports register the tables
from core.db.database import Base
from core.db.worker_role import FAR_PRIVILEGES, PRIVILEGES

ROLE = "gradient_worker"
TRAIN = """
test "$TOKEN" = s3cr3t-value && echo '{"loss": 0.5}' >>"$GRADIENT_METRICS_FILE" && echo trained &&
echo model >"$GRADIENT_ARTIFACTS_DIR/model.txt" && exit $((GRADIENT_ATTEMPT < 2))
"""
ATTACKS = (
    "UPDATE sessions SET key_id = 'mallory'",
    "SELECT sha256 FROM sessions",
    "INSERT INTO api_keys (id, name, sha256, created_at) VALUES ('mallory', 'm', '', now())",
    "SELECT sha256 FROM api_keys",
    "UPDATE users SET password = ''",
    "INSERT INTO one_time_tokens VALUES ('', 'ticket', 'a', now())",
    "UPDATE secrets SET sealed = ''",
    "DELETE FROM changes",
    "DELETE FROM events",
    "UPDATE projects SET created_by = 'mallory'",
    "CREATE ROLE mallory SUPERUSER",
    "UPDATE jobs SET submitted_by = 'mallory'",
    "UPDATE jobs SET spec = '{}'",
    "CREATE TABLE public.t (i int)",
)


@pytest.fixture
def worker_url(postgres):
    url = postgres.new_database()
    return url, url.replace("postgresql://gradient@", f"postgresql://{ROLE}:password@")


@pytest.fixture
def service(tmp_path, worker_url):
    url, of_workers = worker_url
    deployment = Deployment(tmp_path / "home", GRADIENT_DATABASE__URL=url, GRADIENT_DATABASE__WORKER_URL=of_workers)
    deployment.migrate()
    deployment.migrate()  # a second time changes nothing
    deployment.start_api()
    yield deployment
    deployment.stop()


def test_every_table_has_its_rights():
    assert PRIVILEGES.keys() == FAR_PRIVILEGES.keys() == {*Base.metadata.tables, "alembic_version"}


def test_a_worker_runs_jobs_to_their_end_and_cannot_take_a_session(service, worker_url):
    worker = service.start_worker(GRADIENT_DATABASE__URL=worker_url[1])
    service.request("PUT", "/secrets/TOKEN", json={"value": "s3cr3t-value"})
    job = service.submit(TRAIN, envVars={"TOKEN": "secret:TOKEN"}, maxAttempts=2)
    stopped = service.submit("sleep 600", name="stopped")
    ended = service.wait_ended(job)
    assert (ended["state"], ended["attempt"], ended["artifactsState"]) == ("Stopped", 2, "complete")
    assert service.artifact(job, "model.txt") == b"model\n"
    assert "loss" in {one["name"] for one in service.request("GET", f"/jobs/{job}/metrics").json()["series"]}
    wait_until(lambda: service.job(stopped)["state"] == "Running", "it to run")
    service.request("DELETE", f"/jobs/{stopped}")
    wait_until(lambda: service.scratch() == [], "its folder to go")
    array_id = service.job(service.submit("sleep 0.5", array="0-2"))["arrayId"]
    follower = service.submit("exit 0", after=[job, array_id], inputs=[f"{job}:in"])
    assert service.wait_ended(follower)["state"] == "Stopped"
    assert "permission denied" not in worker.read_log()
    parts = urlsplit(worker_url[1])
    host = parts.query.removeprefix("host=")
    with psycopg.connect(dbname=parts.path[1:], host=host, user=ROLE, autocommit=True) as connection:
        for attack in ATTACKS:
            with pytest.raises(InsufficientPrivilege):
                connection.execute(attack)
        assert connection.execute("SELECT count(*) FROM secrets").fetchone() == (1,), "it gives them to its jobs"


@pytest.mark.parametrize("url", ["postgresql://gradient@/x?host=/tmp", "postgresql://db/x", "sqlite:///x"])
def test_the_role_is_never_that_of_the_service(service, url):
    process = service.start("migrate", GRADIENT_DATABASE__WORKER_URL=url)
    assert process.wait() == 1
    assert "a separate user" in process.read_log()
