"""Files in a project's storage over HTTP: whole, confined to the project, and as its jobs see them."""

import errno
import hashlib
import os
import stat
import threading
from urllib.parse import quote

import pytest
from support.deployment import wait_until

from core.settings import DiskSettings
from core.settings.cloud import StoreSettings

MODIFIED = "2024-05-01T10:00:00.123Z"


IN_A_FOLDER = pytest.mark.parametrize("settings", ["folder"], indirect=True)
"""Of tests that look at the folder itself; tests/e2e/test_bucket_storage.py has what jobs see of a bucket."""


@pytest.fixture(params=["folder", *(pytest.param(one, marks=pytest.mark.slow) for one in ("s3", "azure"))])
def settings(request, settings):
    """A folder or a bucket: users cannot tell."""
    if request.param == "folder":
        return settings
    return settings.model_copy(update={"store": StoreSettings(url=request.getfixturevalue(request.param).url)})


@pytest.fixture
def project(client):
    return client.post("/projects", json={"name": "vision"}).json()["id"]


@pytest.fixture
def folder(stores, project):
    """The project's folder, as its jobs have it."""
    return stores.storage.project_folder(project, mounted=False)


def names(folder):
    return [path.name for path in folder.iterdir()]


def url(project, path=""):
    return f"/projects/{project}/storage" + (f"/{quote(path)}" if path else "")


def put(client, project, path, content=b"x", **query):
    return client.put(url(project, path), content=content, params=query)


def listed(client, project, **query):
    answer = client.get(url(project), params=query)
    assert answer.status_code == 200, answer.text
    return [entry["path"] for entry in answer.json()["entries"]]


@IN_A_FOLDER
def test_a_file_comes_back_as_it_was_sent(client, project, stores):
    content = bytes(range(256)) * 20_000
    digest = hashlib.sha256(content).hexdigest()
    entry = put(client, project, "sets/a b/ünï%.npz", content, sha256=digest, modified=MODIFIED).json()
    assert entry == {
        "path": "sets/a b/ünï%.npz",
        "kind": "file",
        "size": len(content),
        "modified": MODIFIED,
        "sha256": digest,
        "executable": False,
        "etag": f"{len(content):x}-{1714557600123:x}",
    }
    got = client.get(url(project, entry["path"]))
    assert got.content == content
    assert got.headers["etag"] == f'"{entry["etag"]}"'
    assert "attachment" in got.headers["content-disposition"]
    rest = client.get(url(project, entry["path"]), headers={"Range": "bytes=5-", "If-Range": got.headers["etag"]})
    assert (rest.status_code, rest.content) == (206, content[5:])
    stored = stores.storage.of_project(project) / "sets" / "a b" / "ünï%.npz"
    assert stored.read_bytes() == content
    # Its jobs may run as another user, who must be able to read and replace it.
    assert stat.S_IMODE(stored.stat().st_mode) == 0o666
    assert stat.S_IMODE(stored.parent.stat().st_mode) == 0o777
    assert stat.S_IMODE(stores.storage.of_project(project).stat().st_mode) == 0o700
    assert names(stores.storage.incoming) == []


@IN_A_FOLDER
def test_a_digest_is_told_until_a_job_changes_the_file(client, project, folder):
    def digests():
        listed = (client.get(url(project), params=query).json() for query in ({}, {"path": "kept"}))
        return [entry["sha256"] for page in listed for entry in page["entries"] if entry["path"] == "kept"]

    known = hashlib.sha256(b"aaaa").hexdigest()
    put(client, project, "kept", b"aaaa", modified=MODIFIED)
    assert digests() == [known, known]
    stored = folder / "kept"
    before = stored.stat()
    stored.write_bytes(b"bbbb")
    assert digests() == [None, None]
    os.utime(stored, ns=(before.st_mtime_ns, before.st_mtime_ns + 1))
    assert digests() == [None, None]
    (folder / "written").write_bytes(b"by a job")
    (folder / "link").symlink_to("kept")
    entries = client.get(url(project)).json()["entries"]
    assert [entry["sha256"] for entry in entries] == [None] * 4, "of what is there, and the data sets"


def test_a_list_has_folders_and_files_page_by_page(client, project, folder):
    assert listed(client, project) == ["datasets"]
    for path in ("b/2", "b/1", "a", "b/c/3", "b-d"):
        assert put(client, project, path).status_code == 200
    (folder / "link").symlink_to("/etc/passwd")
    os.mkfifo(folder / "pipe")
    everything = ["a", "b", "b/1", "b/2", "b/c", "b/c/3", "b-d", "datasets", "link", "pipe"]
    assert listed(client, project) == ["a", "b", "b-d", "datasets", "link", "pipe"]
    assert listed(client, project, recursive=True) == everything
    assert listed(client, project, path="b") == ["b/1", "b/2", "b/c"]
    assert listed(client, project, path="b/1") == ["b/1"]
    pages, after = [], None
    while len(pages) < len(everything):
        page = client.get(
            url(project), params={"recursive": True, "limit": 1} | ({"after": after} if after else {})
        ).json()
        pages += [entry["path"] for entry in page["entries"]]
        after = page["next"]
    assert (pages, after) == (everything, None)
    kinds = {entry["path"]: entry["kind"] for entry in client.get(url(project)).json()["entries"]}
    assert kinds == {"datasets": "folder", "a": "file", "b": "folder", "b-d": "file", "link": "other", "pipe": "other"}


def test_a_project_without_jobs_is_empty(client, project):
    assert listed(client, project) == []
    assert client.get(url(project), params={"path": "sets"}).status_code == 404
    assert client.get(url("p-none")).status_code == 404
    assert put(client, "p-none", "a").status_code == 404


@pytest.mark.usefixtures("folder")
def test_data_sets_of_all_projects_are_read_only(client, project, stores):
    (stores.storage.datasets / "cifar").mkdir()
    (stores.storage.datasets / "cifar" / "train").write_bytes(b"images")
    assert listed(client, project, path="datasets", recursive=True) == ["datasets/cifar", "datasets/cifar/train"]
    assert client.get(url(project, "datasets/cifar/train")).content == b"images"
    assert client.get(url(project, "datasets")).status_code == 404
    for path in ("datasets", "datasets/cifar/train", "datasets/new"):
        refused = put(client, project, path)
        assert refused.status_code == 400
        assert "administrator" in refused.json()["error"]["message"]
        assert client.delete(url(project, path), params={"recursive": True}).status_code == 400
    assert (stores.storage.datasets / "cifar" / "train").read_bytes() == b"images"


@IN_A_FOLDER
def test_projects_do_not_see_each_other(client, project, folder):
    other = client.post("/projects", json={"name": "other"}).json()["id"]
    put(client, project, "mine", b"secret")
    assert client.get(url(other, "mine")).status_code == 404
    assert client.delete(url(other, "mine")).status_code == 404
    for path in (f"../{project}/mine", f"x/../../{project}/mine", "/etc/passwd", "a/..", "./a", "a//b", "a/", "a\\b"):
        for method in ("GET", "PUT", "DELETE"):
            answer = client.request(method, f"/projects/{other}/storage/{quote(path, safe='')}", content=b"x")
            assert answer.status_code == 400, (method, path, answer.text)
    assert (folder / "mine").read_bytes() == b"secret"


@pytest.mark.parametrize("name", ["a\nb", "a\0b", "\x1b[31m", "\x7f", "a\x9bb", "n" * 256, "d/" * 102 + "x", "a%zz%41"])
def test_a_name_that_cannot_be_shown_is_refused(client, project, folder, name):
    before = sorted(names(folder))
    assert put(client, project, name).status_code == 400
    assert sorted(names(folder)) == before


def test_no_link_of_a_job_is_followed(client, project, folder, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_bytes(b"secret")
    (folder / "out").symlink_to(outside)
    (folder / "file").symlink_to(outside / "secret")
    assert client.get(url(project, "out/secret")).status_code == 404
    assert client.get(url(project, "file")).status_code == 404
    assert put(client, project, "out/secret").status_code == 400
    assert put(client, project, "file", b"new").status_code == 200, "the link is replaced"
    assert (folder / "file").read_bytes() == b"new"
    assert client.delete(url(project, "out/secret")).status_code == 404
    assert client.delete(url(project, "out"), params={"recursive": True}).status_code == 204, "the link is deleted"
    assert (outside / "secret").read_bytes() == b"secret"


def test_a_fifo_of_a_job_blocks_nobody(client, project, folder):
    os.mkfifo(folder / "pipe")
    assert client.get(url(project, "pipe")).status_code == 404
    assert client.delete(url(project, "pipe")).status_code == 204


@IN_A_FOLDER
def test_a_file_is_replaced_as_a_whole(client, project, folder):
    put(client, project, "a", b"old" * 1000)
    with (folder / "a").open("rb") as reading:
        reading.read(3)
        assert put(client, project, "a", b"new").status_code == 200
        assert reading.read() == b"old" * 999, "a job that reads the old file has all of it"
    damaged = put(client, project, "a", b"bad", sha256="0" * 64)
    assert damaged.status_code == 400
    assert "damaged in transit" in damaged.json()["error"]["message"]
    assert (folder / "a").read_bytes() == b"new"


@IN_A_FOLDER
def test_a_folder_is_no_file(client, project, folder):
    put(client, project, "a/b")
    for path in ("a", "a/b/c"):
        assert put(client, project, path).status_code == 400
    assert client.get(url(project, "a")).status_code == 404
    refused = client.delete(url(project, "a"))
    assert refused.status_code == 400
    assert "not empty" in refused.json()["error"]["message"]
    assert (folder / "a" / "b").exists()
    assert client.delete(url(project, "a"), params={"recursive": True}).status_code == 204
    assert listed(client, project) == ["datasets"]
    assert client.delete(url(project, "a")).status_code == 404


def test_a_deep_tree_of_a_job_is_deleted(client, project, folder, stores):
    place = os.open(folder, os.O_RDONLY)
    for _ in range(1500):
        os.mkdir("deep", dir_fd=place)
        deeper = os.open("deep", os.O_RDONLY, dir_fd=place)
        os.close(place)
        place = deeper
    os.close(place)
    assert len(listed(client, project, recursive=True)) == 102
    assert client.delete(url(project, "deep"), params={"recursive": True}).status_code == 204
    assert not (folder / "deep").exists()
    stores.storage.sweep_incoming(-1)  # as the worker does, where the request had too little time
    assert names(stores.storage.incoming) == []


@IN_A_FOLDER
def test_an_upload_that_breaks_off_leaves_nothing(client, project, folder, stores, live_server):
    put(client, project, "a", b"old")
    begun, go_on = threading.Event(), threading.Event()

    def body():
        yield b"n" * 2_000_000
        begun.set()
        go_on.wait(30)
        raise ConnectionResetError

    def send():
        with live_server.client() as other, pytest.raises(ConnectionResetError):
            other.put(url(project, "a"), content=body(), headers={"Content-Length": "4000000"})

    sending = threading.Thread(target=send)
    sending.start()
    assert begun.wait(30)
    wait_until(lambda: names(stores.storage.incoming), "the upload")
    assert (folder / "a").read_bytes() == b"old"
    go_on.set()
    sending.join()
    wait_until(lambda: not names(stores.storage.incoming), "the end of the upload")
    assert (folder / "a").read_bytes() == b"old"


def test_limits_are_those_of_uploads(client, project, folder, settings, monkeypatch):
    refused = put(client, project, "a", b"x" * (settings.api.max_upload_bytes + 1))
    assert refused.status_code == 413
    unknown = client.put(url(project, "a"), content=iter([b"x"]))
    assert (unknown.status_code, unknown.json()["error"]["name"]) == (411, "LengthRequired")
    monkeypatch.setattr("core.system.filesystem.free_bytes", lambda _folder: settings.disk.min_free_mb * 1024**2 + 1000)
    assert put(client, project, "a", b"x" * 1000).status_code == 200
    full = put(client, project, "b", b"x" * 1001)
    assert full.status_code == 507
    assert "GRADIENT_DISK__MIN_FREE_MB" in full.json()["error"]["message"]
    assert not (folder / "b").exists()


class TestQuota:
    @pytest.fixture
    def settings(self, settings):
        return settings.model_copy(update={"disk": DiskSettings(project_mb=1)})

    def test_the_storage_of_a_project_has_its_quota(self, client, project, folder, stores):
        most = 1024**2
        assert put(client, project, "a", b"x" * (most - 100_000)).status_code == 200
        full = put(client, project, "b", b"x" * 200_000)
        assert full.status_code == 507
        assert "its limit is 1 MiB" in full.json()["error"]["message"]
        assert client.delete(url(project, "a")).status_code == 204
        assert put(client, project, "b", b"x" * 200_000).status_code == 200
        (folder / "of a job").write_bytes(b"x" * most)
        stores.storage_usage.forget(project)
        assert put(client, project, "c").status_code == 507, "files of jobs count"


def test_a_full_disk_is_named(client, project, folder, monkeypatch):
    def full(_descriptor, _data):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("core.storage.shared.project_files.write_all", full)
    refused = put(client, project, "a")
    assert refused.status_code == 507
    assert not (folder / "a").exists()


@pytest.mark.usefixtures("folder")
def test_storage_of_another_user_is_refused_clearly(client, project, monkeypatch):
    def denied(*_args, **_more):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("core.storage.shared.project_files.opened_folder", denied)
    for answer in (client.get(url(project)), client.get(url(project, "a")), put(client, project, "a")):
        assert answer.status_code == 501
        assert "has no access to" in answer.json()["error"]["message"]


def test_what_a_killed_service_left_is_swept(stores):
    stores.storage.incoming.mkdir(parents=True)
    old, new = stores.storage.incoming / "upload-old", stores.storage.incoming / "upload-new"
    (stores.storage.incoming / "removed-old" / "inside").mkdir(parents=True)
    old.touch()
    new.touch()
    for path in (old, stores.storage.incoming / "removed-old"):
        os.utime(path, (0, 0))
    assert stores.storage.sweep_incoming(3600) == 2
    assert names(stores.storage.incoming) == ["upload-new"]


@IN_A_FOLDER
def test_a_complete_upload_of_an_old_file_is_not_swept(client, project, folder, stores, monkeypatch):
    sync = os.fsync

    def sync_slowly(descriptor):
        sync(descriptor)
        stores.storage.sweep_incoming(3600)

    monkeypatch.setattr(os, "fsync", sync_slowly)
    answer = put(client, project, "old.npz", b"x", modified=MODIFIED)
    assert (answer.status_code, answer.json().get("modified")) == (200, MODIFIED)
    assert (folder / "old.npz").read_bytes() == b"x"
