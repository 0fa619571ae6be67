"""Policies over HTTP, and what is told of what they removed."""

import io
import time

import pytest
from support.live_service import make_form, make_job_body, make_zip
from support.retention_jobs import RetentionJobs

from core.settings.limits import RetentionSettings
from core.storage.prune import prune
from core.storage.workspaces.limits import WorkspaceLimits

SENTENCE = "removed: kept 30 days after the job's end by the service's settings."


@pytest.fixture
def retention_jobs(stores, tmp_path):
    stores.settings.retention = RetentionSettings(logs_days=30, artifacts_days=30, workspaces_days=30)
    return RetentionJobs(stores, tmp_path / "left")


@pytest.fixture
def pruned(retention_jobs, stores):
    """A job whose log and artifacts are gone."""
    job = retention_jobs.create_job(31, log=b"one\ntwo\n", files=["model"])
    prune(stores)
    return job.id


@pytest.fixture
def project_id(client):
    return client.post("/projects", json={"name": "vision"}).json()["id"]


def test_a_project_is_shown_with_its_limit_policies_and_live_jobs(client, project_id, worker):
    for _ in range(3):
        client.post("/jobs", json=make_job_body(project="vision"))
    worker.claim()
    shown = client.get(f"/projects/{project_id}").json()
    assert (shown["jobCount"], shown["runningCount"], shown["queuedCount"]) == (3, 1, 2)
    assert (shown["maxRunning"], shown["keepLogsDays"], shown["keepArtifactsDays"]) == (None, None, None)
    assert (shown["keepLogsBy"], shown["keepArtifactsBy"]) == ("service", "service")
    assert client.get("/projects").json()["projects"] == [shown]


def test_a_project_is_changed_field_by_field(client, project_id):
    def change(**fields):
        answer = client.patch(f"/projects/{project_id}", json=fields)
        assert answer.status_code == 200, answer.text
        assert client.get(f"/projects/{project_id}").json() == answer.json()
        return answer.json()

    before = client.get(f"/projects/{project_id}").json()
    assert change() == before
    assert change(maxRunning=4) == {**before, "maxRunning": 4}
    kept = {"keepLogsDays": 30, "keepLogsBy": "project", "keepArtifactsDays": 90, "keepArtifactsBy": "project"}
    assert change(keepLogsDays=30, keepArtifactsDays=90) == {**before, "maxRunning": 4, **kept}
    assert change(maxRunning=None, keepLogsDays=None) == {**before, **kept, "keepLogsDays": None}
    assert change(keepLogsDays="default", keepArtifactsDays="default") == before


@pytest.mark.parametrize(
    ("fields", "status", "field", "message"),
    [
        ({"maxRunning": 0}, 400, "maxRunning", "0 is out of range: 1 to 1,000,000 jobs at once (null: no limit)."),
        ({"keepLogsDays": 0}, 400, "keepLogsDays", "0 is out of range: 1 to 36,500 days (null: forever)."),
        ({"keepArtifactsDays": 36_501}, 400, "keepArtifactsDays", "36501 is out of range: 1 to 36,500 days"),
        ({"keepLogsDays": 10**30}, 400, "keepLogsDays", "out of range"),
        ({"maxRunning": "4"}, 422, "maxRunning", "must be a valid integer"),
        ({"maxRunning": True}, 422, "maxRunning", "must be a valid integer"),
        ({"keepLogsDays": True}, 422, "keepLogsDays", "must be a number of days, null (forever)"),
        ({"keepLogsDays": "forever"}, 422, "keepLogsDays", 'or "default" (the service\'s setting).'),
        ({"keepLogsDays": 1.5}, 422, "keepLogsDays", "must be a number of days"),
        ({"maxrunning": 4}, 422, "maxrunning", "'maxrunning' is not a field here"),
    ],
)
def test_a_change_that_cannot_be_names_the_field_the_problem_and_the_way_out(
    client, project_id, fields, status, field, message
):
    answer = client.patch(f"/projects/{project_id}", json=fields)
    error = answer.json()["error"]
    assert (answer.status_code, error["field"]) == (status, field)
    assert message in error["message"]
    assert client.get(f"/projects/{project_id}").json()["maxRunning"] is None


def test_a_project_that_is_not_there_cannot_be_changed(client, anonymous_client, project_id):
    assert client.patch("/projects/pr0000000000000", json={"maxRunning": 1}).status_code == 404
    assert anonymous_client.patch(f"/projects/{project_id}", json={"maxRunning": 1}).status_code == 401


def test_lists_of_what_was_removed_are_empty_and_say_why(client, pruned):
    job = client.get(f"/jobs/{pruned}").json()
    assert job["artifactsState"] == "removed"
    assert [one["what"] for one in job["removed"]] == ["logs", "artifacts"]
    assert [one["message"] for one in job["removed"]] == [f"The log was {SENTENCE}", f"The artifacts were {SENTENCE}"]
    assert client.get("/jobs").json()["jobs"] == [job]
    log, artifacts = job["removed"]
    assert client.get(f"/jobs/{pruned}/logs").json() == {
        "lines": [],
        "total": 0,
        "complete": True,
        "partial": None,
        "removed": log,
    }
    page = client.get(f"/jobs/{pruned}/artifacts").json()
    assert page == {
        "state": "removed",
        "files": [],
        "folders": [],
        "skipped": [],
        "next": None,
        "totalFiles": 0,
        "totalBytes": 0,
        "removed": artifacts,
    }
    kinds = [(event["kind"], event["reason"]) for event in client.get(f"/jobs/{pruned}/events").json()["events"]]
    assert kinds[-2:] == [("retention", "logs_removed"), ("retention", "artifacts_removed")]


@pytest.mark.parametrize("path", ["logs/raw", "artifacts/file/model", "artifacts.zip"])
def test_bytes_of_what_was_removed_are_gone(client, pruned, path):
    answer = client.get(f"/jobs/{pruned}/{path}")
    assert (answer.status_code, answer.json()["error"]["name"]) == (410, "OutputRemoved")
    assert SENTENCE in answer.json()["error"]["message"]


@pytest.mark.usefixtures("live_server")  # whose connection breaks off
def test_a_zip_whose_files_go_while_it_is_sent_breaks_off(client, stores, retention_jobs, monkeypatch):
    job = retention_jobs.create_job(1, files=["a", "b"])
    real = type(stores.artifacts).open

    def removed_meanwhile(store, job_id, attempt, path):
        store.remove(job_id)
        return real(store, job_id, attempt, path)

    monkeypatch.setattr(type(stores.artifacts), "open", removed_meanwhile)
    with pytest.raises(Exception, match=r"incomplete|closed|peer"):
        client.get(f"/jobs/{job.id}/artifacts.zip")


def test_a_clone_of_a_job_whose_workspace_went_says_so(client, stores, retention_jobs):
    sha256 = stores.workspaces.add(io.BytesIO(make_zip()), WorkspaceLimits()).sha256
    job = retention_jobs.create_job(31, workspace_sha256=sha256)
    assert client.post(f"/jobs/{job.id}/clone").status_code == 201
    assert stores.workspaces.discard(sha256, unused_since=time.time() + 1)
    answer = client.post(f"/jobs/{job.id}/clone")
    assert (answer.status_code, answer.json()["error"]["name"]) == (404, "WorkspaceNotFound")
    assert f"The workspace of job {job.id} is no longer stored" in answer.json()["error"]["message"]
    assert "gradient-cli jobs create" in answer.json()["error"]["message"]


def test_a_submission_keeps_its_archive_from_being_removed(client, stores):
    answer = client.post("/jobs", files=make_form(make_job_body(), make_zip()))
    sha256 = answer.json()["workspaceSha256"]
    (first,) = stores.workspaces.stored()
    client.post("/jobs", json=make_job_body(workspaceSha256=sha256))
    (second,) = stores.workspaces.stored()
    assert second.used_at > first.used_at
