"""Workspaces sent as manifests: what is asked for, stored and refused over HTTP."""

import errno
import hashlib
import io
import json
import tarfile

import pytest
from support.live_service import count_jobs, list_stored_workspaces, make_job_body

from core.storage.workspaces.limits import WorkspaceLimits

MANIFEST, CONTENTS = "manifest", "contents"


def digest(content):
    return hashlib.sha256(content).hexdigest()


def manifest_of(files):
    listed = [[path, 0o644, len(content), digest(content)] for path, content in files.items()]
    return json.dumps({"files": listed}).encode()


def form_of(manifest, *contents):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as packed:
        for content in contents:
            header = tarfile.TarInfo(digest(content))
            header.size = len(content)
            packed.addfile(header, io.BytesIO(content))
    return {
        MANIFEST: (None, manifest, "application/json"),
        CONTENTS: ("contents.tar.gz", buffer.getvalue(), "application/gzip"),
    }


def error_of(answer, status, field=None):
    assert answer.status_code == status, answer.text
    assert answer.json()["error"].get("field") == field
    return answer.json()["error"]["message"]


JSON = {"Content-Type": "application/json"}
FILES = {"main.py": b"print(1)", "data": b"x" * 5000}
DATA = manifest_of(FILES)
SHA = digest(DATA)


@pytest.fixture
def stored(client):
    answer = client.put(f"/workspaces/{SHA}", files=form_of(DATA, *FILES.values()))
    assert (answer.status_code, answer.json()) == (200, {"sha256": SHA, "size": 5008})
    return SHA


def test_a_changed_file_is_all_that_is_sent_again(client, stored, stores, tmp_path):
    changed = FILES | {"main.py": b"print(2)"}
    data = manifest_of(changed)
    asked = client.post("/workspaces/missing", params={"base": stored}, content=data, headers=JSON)
    assert asked.json() == {"missing": [digest(b"print(2)")]}
    sha256 = digest(data)
    assert client.get(f"/workspaces/{sha256}").status_code == 404, "a question stores nothing"
    put = client.put(f"/workspaces/{sha256}", params={"base": stored}, files=form_of(data, b"print(2)"))
    assert put.json() == client.get(f"/workspaces/{sha256}").json() == {"sha256": sha256, "size": 5008}
    job = client.post("/jobs", json=make_job_body(workspaceSha256=sha256))
    assert (job.status_code, job.json()["workspaceSha256"]) == (201, sha256)
    assert client.post(f"/jobs/{job.json()['id']}/clone").json()["workspaceSha256"] == sha256
    stores.workspaces.extract(sha256, tmp_path / "out", WorkspaceLimits())
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == changed


@pytest.mark.usefixtures("stored")
def test_without_a_base_all_contents_are_missing(client):
    for query in ({}, {"base": "0" * 64}):
        asked = client.post("/workspaces/missing", params=query, content=DATA, headers=JSON)
        assert set(asked.json()["missing"]) == {digest(content) for content in FILES.values()}
    other = manifest_of({"stolen": FILES["main.py"]})
    refused = client.put(f"/workspaces/{digest(other)}", content=other, headers=JSON)
    assert "contents are not stored here" in error_of(refused, 404, "contents")


@pytest.mark.parametrize(
    ("sha256", "data", "field"),
    [
        ("0" * 64, DATA, "workspace"),
        ("x", DATA, "workspaceSha256"),
        (digest(b"{}"), b"{}", "manifest"),
        (digest(b"no JSON"), b"no JSON", "manifest"),
    ],
)
def test_a_wrong_manifest_is_refused(client, settings, sha256, data, field):
    error_of(client.put(f"/workspaces/{sha256}", content=data, headers=JSON), 400, field)
    assert list_stored_workspaces(settings) == []


def test_a_base_that_is_no_digest_is_refused(client):
    asked = client.post("/workspaces/missing", params={"base": "../x"}, content=DATA, headers=JSON)
    assert "is not a sha256" in error_of(asked, 400, "workspaceSha256")


def test_wrong_contents_leave_nothing(client, settings):
    refused = client.put(f"/workspaces/{SHA}", files=form_of(DATA, b"print(1)", b"other"))
    assert "not named by a sha256 of the manifest" in error_of(refused, 400, "workspace")
    assert list_stored_workspaces(settings) == []


def test_other_bodies_are_refused(client, settings):
    assert client.put(f"/workspaces/{SHA}", content=DATA, headers={"Content-Type": "text/plain"}).status_code == 415
    form = form_of(DATA, *FILES.values())
    error_of(client.put(f"/workspaces/{SHA}", files={**form, "more": b"x"}), 422, "more")
    error_of(client.put(f"/workspaces/{SHA}", files={CONTENTS: form[CONTENTS]}), 422, MANIFEST)
    assert list_stored_workspaces(settings) == []


def test_contents_larger_than_the_limits_are_refused(client, settings):
    huge = json.dumps({"files": [["a", 0o644, 41 * 1024**2, "0" * 64]]}).encode()
    assert "unpacks to more than" in error_of(
        client.post("/workspaces/missing", content=huge, headers=JSON), 400, "workspace"
    )
    refused = client.put(f"/workspaces/{SHA}", files={**form_of(DATA), CONTENTS: ("c", bytes(21 * 1024**2))})
    assert refused.status_code == 413
    assert list_stored_workspaces(settings) == []


def test_a_full_disk_is_said_so_and_leaves_no_workspace(client, settings, monkeypatch):
    def full(*_args, **_named):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("core.storage.workspaces.stored_files._copy", full)
        refused = client.put(f"/workspaces/{SHA}", files=form_of(DATA, *FILES.values()))
    assert "No space left on device" in error_of(refused, 503)
    assert list_stored_workspaces(settings) == []
    missing = client.post("/jobs", json=make_job_body(workspaceSha256=SHA))
    error_of(missing, 404, "workspaceSha256")


def test_an_upload_without_room_is_refused_before_it_is_read(client, monkeypatch, database):
    monkeypatch.setattr("service.http.upload_form.describe_shortage", lambda *_args, **_named: "1 MiB are free")
    refused = client.put(f"/workspaces/{SHA}", files=form_of(DATA, *FILES.values()))
    assert "no room for this upload" in error_of(refused, 507, CONTENTS)
    assert count_jobs(database) == 0


def test_an_unchanged_manifest_needs_no_contents(client, stored):
    assert client.put(f"/workspaces/{stored}", content=DATA, headers=JSON).status_code == 200
