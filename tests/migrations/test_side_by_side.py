"""This release's processes on the next release's database: they run, and start again, as if it were their own."""

import json

import pytest
from support.deployment import Deployment
from support.releases import HEAD_REVISION, NEXT_REVISION, ReleaseStep, act_as_release, make_later_release

from core.db import migrations as migrating
from core.db import schema_check
from core.db.database import Database

pytestmark = pytest.mark.timeout(300)

BODIES = (
    """
    op.add_column("jobs", sa.Column("pool", sa.String(64)))
    op.add_column("jobs", sa.Column("shape", sa.Integer(), server_default="3", nullable=False))
    op.add_column("attempts", sa.Column("restarts", sa.Integer(), server_default="0", nullable=False))
    """,
    """
    op.create_table(
        "budgets",
        sa.Column("project_id", sa.String(16), sa.ForeignKey("projects.id"), primary_key=True),
        sa.Column("dollars", sa.Double(), nullable=False),
    )
    op.create_index("ix_jobs_shape", "jobs", ["shape"])
    """,
)

LAST = f"{int(HEAD_REVISION) + len(BODIES):04d}"


@pytest.fixture(params=["sqlite", "postgresql"])
def service(request, tmp_path):
    """This release's, migrated and never started."""
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    if request.param == "sqlite":
        url = f"sqlite:///{home / 'gradient.db'}"
    else:
        url = request.getfixturevalue("postgres").new_database()
    service = Deployment(home, GRADIENT_DATABASE__URL=url)
    service.migrate()
    yield service
    service.stop()


def migrate_ahead(service, folder, serves=HEAD_REVISION):
    database = Database(service.database_url)
    with act_as_release(make_later_release(folder, *[ReleaseStep(body, serves) for body in BODIES])):
        assert migrating.upgrade(database).status is schema_check.SchemaStatus.CURRENT
    database.close()


def run_a_job(service, text):
    job_id = service.submit(f'echo {text}; printf {text} >"$GRADIENT_ARTIFACTS_DIR/out"', key=text)
    job = service.wait_ended(job_id)
    assert (job["state"], job["exitCode"], job["attempt"]) == ("Stopped", 0, 1), job
    assert service.raw_log(job_id) == f"{text}\n".encode()
    assert service.artifact(job_id, "out") == text.encode()
    assert "finished" in [event["kind"] for event in service.events(job_id)]


def test_old_processes_run_on_and_start_again_after_a_migration(service, tmp_path):
    api, worker = service.start_api(), service.start_worker()
    run_a_job(service, "before")
    migrate_ahead(service, tmp_path / "later")
    run_a_job(service, "while-they-run")
    for process in (api, worker):
        process.kill()
    again = [service.start_api(), service.start_worker()]
    run_a_job(service, "started-again")
    assert [process.read_log().count("database_is_newer") for process in again] == [1, 1]
    listed = service.request("GET", "/jobs?limit=10").json()["jobs"]
    assert [job["state"] for job in listed] == ["Stopped"] * 3
    stopped = service.request("POST", f"/jobs/{service.submit('sleep 600')}/stop")
    assert service.wait_ended(stopped.json()["id"])["state"] == "Cancelled"
    assert service.request("DELETE", f"/jobs/{listed[0]['id']}").status_code == 204


def test_the_commands_of_an_old_release_work_on_a_newer_database(service, tmp_path):
    service.start_api()  # makes the first key, and what else the doctor looks for
    migrate_ahead(service, tmp_path / "later")
    again = service.start("migrate")
    assert again.wait() == 0, again.read_log()
    assert f"(revision {LAST})" in again.read_log()
    assert "Nothing was changed" in again.read_log()
    keys = service.start("keys", "create", "alice", "--json")
    assert keys.wait() == 0, keys.read_log()
    doctor = service.start("doctor", "--json")
    doctor.wait()
    findings = json.loads(doctor.read_log())["findings"]
    (migrations,) = [finding for finding in findings if finding["check"] == "migrations"]
    assert migrations["status"] == "warning"
    assert "clock" in {finding["check"] for finding in findings}, "what needs the tables is looked at"


def test_everything_refuses_a_database_that_shuts_it_out(service, tmp_path):
    migrate_ahead(service, tmp_path / "later", serves=NEXT_REVISION)
    for command in (["up", "--port", "0"], ["api", "--port", "0"], ["worker"], ["migrate"], ["keys", "list"]):
        refused = service.start(*command)
        assert refused.wait() == 1, command
        assert refused.read_log().startswith("error: The database (revision"), refused.read_log()
        assert "can no longer use it. Install the release" in refused.read_log()
        assert "Traceback" not in refused.read_log()


def test_up_runs_on_a_newer_database(tmp_path):
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    service = Deployment(home, GRADIENT_DATABASE__URL=f"sqlite:///{home / 'gradient.db'}")
    try:
        up = service.start_up()
        run_a_job(service, "before")
        up.kill()
        migrate_ahead(service, tmp_path / "later")
        up = service.start_up()
        assert "database_is_newer" in up.read_log()
        run_a_job(service, "after")
    finally:
        service.stop()


def test_the_schema_is_taken_back_by_command(service):
    refused = service.start("migrate", "--back-to", "9999")
    assert refused.wait() == 1
    assert refused.read_log().startswith("error: The schema cannot be migrated back to '9999'")
    back = service.start("migrate", "--back-to", "base")
    assert (back.wait(), back.read_log()) == (0, "The database is empty now.\n")
    service.migrate()
    service.start_api()
    assert service.request("GET", "/readiness").status_code == 200


def test_migrations_at_once_do_not_collide(tmp_path, postgres):
    service = Deployment(tmp_path / "home", GRADIENT_DATABASE__URL=postgres.new_database())
    try:
        for process in [service.start("migrate") for _ in range(3)]:
            assert (process.wait(), process.read_log()) == (0, "The database is up to date.\n")
    finally:
        service.stop()
