"""Uploads and submissions where a disk or a quota has no room for them."""

import stat

import pytest
from sqlalchemy import insert
from support.live_service import list_stored_workspaces, make_form, make_job_body, make_zip

from core.db.database import now
from core.db.models.jobs import Attempt
from core.settings import Settings
from core.system.filesystem import make_private

MIB = 1024**2
NOISE = {"noise.bin": bytes(range(256)) * 8192}


def refused(answer):
    assert answer.status_code == 507, answer.text
    return answer.json()["error"]["message"]


@pytest.fixture
def disk(settings, small_disk):
    """The uploads' own disk of 8 MiB, of which 4 have to stay free."""
    settings.disk.min_free_mb = 4
    return small_disk(settings.root / "workspaces", 8 * MIB)


def test_an_upload_that_would_fill_the_disk_is_refused_before_it_is_read(disk, client, settings):
    message = refused(client.post("/jobs", files=make_form(make_job_body(), make_zip(NOISE) + bytes(5 * MIB))))
    assert "have to stay free" in message
    assert "GRADIENT_DISK__MIN_FREE_MB" in message
    assert list_stored_workspaces(settings) == []
    assert client.post("/jobs", files=make_form(make_job_body(), make_zip(NOISE))).status_code == 201
    disk.fill()
    refused(client.post("/jobs", files=make_form(make_job_body(), make_zip())))
    assert client.post("/jobs", json=make_job_body()).status_code == 201, "it uploads nothing"


@pytest.mark.usefixtures("disk")
def test_an_upload_of_unknown_length_ends_where_the_room_does(client, settings):
    request = client.build_request("POST", "/jobs", files=make_form(make_job_body(), bytes(6 * MIB)))
    body = request.read()
    parts = (body[start : start + MIB] for start in range(0, len(body), MIB))
    kind = {"content-type": request.headers["content-type"]}
    refused(client.post("/jobs", content=parts, headers=kind))
    assert list_stored_workspaces(settings) == []


@pytest.fixture
def make_stored_job(client, database):
    """A job of a project, of which so many MiB are kept."""

    def make_stored_job(project, mib):
        job = client.post("/jobs", json=make_job_body(project=project), headers={"Idempotency-Key": project}).json()
        values = {"job_id": job["id"], "attempt": 1, "worker": "w1", "host": "here", "claimed_at": now()}
        with database.write() as session:
            session.execute(insert(Attempt).values(**values, log_bytes=MIB, artifact_bytes=(mib - 1) * MIB))
        return job

    return make_stored_job


def test_a_project_that_keeps_all_that_it_may_gets_no_new_job(client, make_stored_job):
    job = make_stored_job("heavy", 10)
    limited = client.patch(f"/projects/{job['projectId']}", json={"maxStoredMb": 10})
    assert limited.json()["maxStoredMb"] == 10
    message = refused(client.post("/jobs", json=make_job_body(project="heavy")))
    assert "10 MiB" in message
    refused(client.post(f"/jobs/{job['id']}/clone"))
    again = client.post("/jobs", json=make_job_body(project="heavy"), headers={"Idempotency-Key": "heavy"})
    assert (again.status_code, again.json()["id"]) == (200, job["id"]), "what was accepted stays so"
    assert client.post("/jobs", json=make_job_body(project="light")).status_code == 201
    assert client.patch(f"/projects/{job['projectId']}", json={"maxStoredMb": None}).json()["maxStoredMb"] is None
    assert client.post("/jobs", json=make_job_body(project="heavy")).status_code == 201


def test_the_service_sets_what_projects_keep_that_say_nothing(client, settings, make_stored_job):
    settings.disk.project_mb = 10
    job = make_stored_job("heavy", 10)
    assert client.get(f"/projects/{job['projectId']}").json()["maxStoredMb"] == 10
    refused(client.post("/jobs", json=make_job_body(project="heavy")))
    client.patch(f"/projects/{job['projectId']}", json={"maxStoredMb": 11})
    assert client.post("/jobs", json=make_job_body(project="heavy")).status_code == 201
    client.patch(f"/projects/{job['projectId']}", json={"maxStoredMb": "default"})
    refused(client.post("/jobs", json=make_job_body(project="heavy")))


@pytest.mark.parametrize("wrong", [0, "none", -1])
def test_a_limit_that_cannot_be_is_refused(client, wrong):
    project = client.post("/jobs", json=make_job_body()).json()["projectId"]
    assert client.patch(f"/projects/{project}", json={"maxStoredMb": wrong}).status_code in {400, 422}


def test_a_home_that_was_open_to_others_is_closed(tmp_path):
    settings = Settings(home=tmp_path / "home")
    for folder in ("attempts", "logs"):
        (settings.root / folder).mkdir(parents=True)
        (settings.root / folder).chmod(0o755)
    (settings.root / "gradient.db").touch(0o644)
    settings.root.chmod(0o755)
    make_private(settings.root, settings.sqlite_file)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (settings.root, *settings.root.iterdir())}
    assert modes == {"home": 0o700, "attempts": 0o700, "logs": 0o700, "gradient.db": 0o600}
