"""Artifacts over HTTP: lists, single files, zips, and nothing that runs in a browser."""

import hashlib
import io
import zipfile
from urllib.parse import quote

import pytest
from support.live_service import make_job_body

from core.jobs.guarded_updates import set_output_sizes
from core.settings.cloud import StoreSettings
from service.http.responses.zip_stream import safe_name


@pytest.fixture(params=["directory", *(pytest.param(one, marks=pytest.mark.slow) for one in ("gcs", "s3"))])
def settings(request, settings):
    """Every store there is: what users see does not tell them apart."""
    if request.param == "directory":
        return settings
    if request.param == "s3":
        s3 = request.getfixturevalue("s3")
        return settings.model_copy(update={"store": StoreSettings(url=s3.url)})
    gcs = request.getfixturevalue("gcs")
    kept_in = StoreSettings(url=f"gs://{gcs.new_bucket()}/artifacts")
    return settings.model_copy(update={"gcs": gcs.settings, "store": kept_in})


@pytest.fixture
def job_id(client):
    return client.post("/jobs", json=make_job_body()).json()["id"]


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "left"
    folder.mkdir()
    return folder


@pytest.fixture
def stored_files(job_id, worker, stores, folder):
    """A job that has ended and left some files."""
    files = {
        "model/weights.h5": bytes(range(256)) * 1000,
        "model/empty": b"",
        "notes.txt": "grüße\n".encode(),
        "page.html": b"<script>alert(1)</script>",
        "plot.svg": b"<svg onload='x'/>",
        "plot.PNG": b"\x89PNG",
        "ünï 🚀 #1?.bin": b"odd",
        "a\\b": b"backslash",
        "\"quoted\"; x='1'.csv": b"1,2",
    }
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
    job = worker.start()
    stores.artifacts.close(job_id, 1, folder)
    worker.end(job, exit_code=0)
    return files


def url(job_id, path):
    return f"/jobs/{job_id}/artifacts/file/{quote(path)}"


def test_a_job_that_left_nothing(client, database, job_id, worker, stores, folder):
    page = client.get(f"/jobs/{job_id}/artifacts").json()
    nothing = {"files": [], "folders": [], "skipped": [], "next": None, "totalFiles": 0, "totalBytes": 0}
    assert page == {"state": "none", **nothing, "removed": None}
    job = worker.start()
    worker.end(job, exit_code=0)
    assert client.get(f"/jobs/{job_id}/artifacts").json()["state"] == "none", "nobody has looked for any"
    size = stores.artifacts.close(job_id, 1, folder).bytes
    with database.write() as session:
        set_output_sizes(session, job, log_bytes=0, artifact_bytes=size)
    page = client.get(f"/jobs/{job_id}/artifacts").json()
    assert page == {"state": "complete", **nothing, "removed": None}, "and no more will come"
    archive = client.get(f"/jobs/{job_id}/artifacts.zip")
    assert zipfile.ZipFile(io.BytesIO(archive.content)).namelist() == []


def test_files_are_listed_with_their_sha256_page_by_page(client, job_id, stored_files):
    whole = client.get(f"/jobs/{job_id}/artifacts").json()
    assert (whole["state"], whole["totalFiles"]) == ("complete", len(stored_files))
    assert whole["totalBytes"] == sum(map(len, stored_files.values()))
    paths = [file["path"] for file in whole["files"]]
    assert sorted(paths) == sorted(name.replace("\\", "%5C") for name in stored_files)
    for file in whole["files"]:
        content = stored_files[file["path"].replace("%5C", "\\")]
        assert (file["size"], file["sha256"]) == (len(content), hashlib.sha256(content).hexdigest())
        assert file["modified"].endswith("Z")
    found, after = [], None
    while True:
        params = {"limit": 2} | ({"after": after} if after else {})
        page = client.get(f"/jobs/{job_id}/artifacts", params=params).json()
        found += page["files"]
        after = page["next"]
        if after is None:
            break
    assert found == whole["files"]
    model = client.get(f"/jobs/{job_id}/artifacts", params={"prefix": "model/"}).json()["files"]
    assert [file["path"] for file in model] == ["model/empty", "model/weights.h5"]


def test_every_file_comes_back_byte_for_byte(client, job_id, stored_files):
    for file in client.get(f"/jobs/{job_id}/artifacts").json()["files"]:
        answer = client.get(url(job_id, file["path"]))
        assert answer.status_code == 200
        assert answer.content == stored_files[file["path"].replace("%5C", "\\")]
        assert answer.headers["etag"] == f'"{file["sha256"]}"'
        assert answer.headers["content-length"] == str(file["size"])


def test_nothing_a_job_left_runs_in_a_browser(client, job_id, stored_files):
    for path in ("page.html", "plot.svg", "notes.txt", "plot.PNG"):
        headers = client.get(url(job_id, path)).headers
        assert headers["content-type"] == "application/octet-stream"
        assert headers["content-disposition"] == f"attachment; filename*=UTF-8''{path}"
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["content-security-policy"] == "sandbox; default-src 'none'"
    inline = {path: client.get(url(job_id, path) + "?inline=1").headers for path in stored_files if "\\" not in path}
    kinds = {path: headers["content-type"] for path, headers in inline.items()}
    assert kinds["page.html"] == kinds["plot.svg"] == "application/octet-stream"
    assert inline["page.html"]["content-disposition"].startswith("attachment")
    assert kinds["notes.txt"] == "text/plain; charset=utf-8"
    assert kinds["plot.PNG"] == "image/png"
    assert inline["plot.PNG"]["content-disposition"].startswith("inline")
    assert {headers["content-security-policy"] for headers in inline.values()} == {"sandbox; default-src 'none'"}
    odd = inline["\"quoted\"; x='1'.csv"]["content-disposition"]
    assert odd == "inline; filename*=UTF-8''%22quoted%22%3B%20x%3D%271%27.csv"


@pytest.mark.parametrize(
    ("header", "start", "stop"),
    [
        ("bytes=0-0", 0, 1),
        ("bytes=100-", 100, 256_000),
        ("bytes=-5", 255_995, 256_000),
        ("bytes=255999-999999", 255_999, 256_000),
        ("bytes=-999999", 0, 256_000),
    ],
)
def test_a_range_is_that_part(client, job_id, stored_files, header, start, stop):
    answer = client.get(url(job_id, "model/weights.h5"), headers={"Range": header})
    content = stored_files["model/weights.h5"]
    assert answer.content == content[start:stop]
    whole = (start, stop) == (0, len(content))
    assert answer.status_code == (200 if whole else 206)
    if not whole:
        assert answer.headers["content-range"] == f"bytes {start}-{stop - 1}/{len(content)}"


STORM = "bytes=" + ",".join(f"{number}-" for number in range(5000))
"""Thousands of ranges that overlap, each nearly the whole file."""


@pytest.mark.parametrize(
    "header", ["bytes=5-4", "bytes=-", "bytes=a-b", "lines=1-2", "bytes=0-1,5-6", "bytes= 0-1", STORM]
)
def test_a_header_that_is_no_single_range_is_ignored(client, job_id, stored_files, header):
    answer = client.get(url(job_id, "notes.txt"), headers={"Range": header})
    assert (answer.status_code, answer.content) == (200, stored_files["notes.txt"])


@pytest.mark.parametrize("header", ["bytes=256000-", "bytes=-0", "bytes=9999999999-"])
@pytest.mark.usefixtures("stored_files")
def test_a_range_past_the_end_is_refused(client, job_id, header):
    answer = client.get(url(job_id, "model/weights.h5"), headers={"Range": header})
    assert (answer.status_code, answer.headers["content-range"]) == (416, "bytes */256000")
    assert answer.json()["error"]["name"] == "RangeNotSatisfiable"


def test_versions_are_told_apart_by_etag(client, job_id, stored_files):
    path = url(job_id, "notes.txt")
    etag = client.get(path).headers["etag"]
    for given in (etag, f"W/{etag}", f'"x", {etag}', "*"):
        same = client.get(path, headers={"If-None-Match": given})
        assert (same.status_code, same.content) == (304, b"")
    assert client.get(path, headers={"If-None-Match": '"x"'}).status_code == 200
    resumed = client.get(path, headers={"Range": "bytes=2-", "If-Range": etag})
    assert (resumed.status_code, resumed.content) == (206, stored_files["notes.txt"][2:])
    changed = client.get(path, headers={"Range": "bytes=2-", "If-Range": '"other"'})
    assert (changed.status_code, changed.content) == (200, stored_files["notes.txt"])


@pytest.mark.parametrize(
    "path", ["../../../gradient.db", "%2e%2e/%2e%2e/gradient.db", "/etc/passwd", "none", "model", "", "a/b\\c"]
)
@pytest.mark.usefixtures("stored_files")
def test_other_paths_are_not_found(client, job_id, path):
    answer = client.get(f"/jobs/{job_id}/artifacts/file/{path}")
    assert answer.status_code == 404
    assert answer.json()["error"]["status"] == 404


def test_a_running_job_can_be_looked_into(client, job_id, worker, stores, folder):
    worker.start()
    (folder / "ckpt").write_bytes(b"1234")
    (folder / "link").symlink_to("/etc/passwd")
    stores.artifacts.sync(job_id, 1, folder)
    page = client.get(f"/jobs/{job_id}/artifacts").json()
    assert page["state"] == "partial"
    assert [(file["path"], file["size"], file["sha256"]) for file in page["files"]] == [("ckpt", 4, None)]
    assert [skipped["path"] for skipped in page["skipped"]] == ["link"]
    first = client.get(url(job_id, "ckpt"))
    assert first.content == b"1234"
    assert "sha256" not in first.headers["etag"]
    assert client.get(url(job_id, "link")).status_code == 404


def test_everything_as_one_zip(client, job_id, stored_files):
    answer = client.get(f"/jobs/{job_id}/artifacts.zip")
    assert answer.headers["content-type"] == "application/zip"
    assert answer.headers["content-disposition"] == f"attachment; filename*=UTF-8''{job_id}.zip"
    archive = zipfile.ZipFile(io.BytesIO(answer.content))
    assert archive.testzip() is None
    unpacked = {info.filename: archive.read(info) for info in archive.infolist() if not info.is_dir()}
    assert unpacked == {f"{job_id}/{name.replace(chr(92), '%5C')}": content for name, content in stored_files.items()}
    kinds = {info.filename.rpartition("/")[2]: info.compress_type for info in archive.infolist()}
    assert (kinds["notes.txt"], kinds["weights.h5"]) == (zipfile.ZIP_DEFLATED, zipfile.ZIP_STORED)


@pytest.mark.parametrize(
    ("path", "name"),
    [("a/b", "a/b"), ("../a", "a"), ("/etc/x", "etc/x"), ("a\\..\\b", "a%5C..%5Cb"), ("a\nb/./c", "a%0Ab/c")],
)
def test_names_in_a_zip_stay_below_its_folder(path, name):
    assert safe_name(path) == name


@pytest.mark.parametrize("attempt", [0, -1, 2**31, "9" * 300])
def test_an_attempt_that_cannot_be_is_refused(client, job_id, attempt):
    for path in ("artifacts", "artifacts.zip", "artifacts/file/notes.txt"):
        assert client.get(f"/jobs/{job_id}/{path}", params={"attempt": attempt}).status_code == 422


def test_a_browser_that_follows_a_link_may_be_sent_to_the_bucket(client, job_id, stored_files, stores, monkeypatch):
    assert (
        client.get(url(job_id, "notes.txt"), headers={"Sec-Fetch-Mode": "navigate"}).content
        == stored_files["notes.txt"]
    )
    asked = []
    monkeypatch.setattr(stores.artifacts, "link", lambda *words: asked.append(words) or "https://bucket/signed")
    sent = client.get(url(job_id, "notes.txt"), headers={"Sec-Fetch-Mode": "navigate"})
    assert (sent.status_code, sent.headers["location"]) == (307, "https://bucket/signed")
    assert sent.headers["cache-control"] == "no-store"
    assert asked[0] == (job_id, 1, "notes.txt")
    for headers, query in (({}, ""), ({"Sec-Fetch-Mode": "cors"}, ""), ({"Sec-Fetch-Mode": "navigate"}, "?inline=1")):
        answer = client.get(url(job_id, "notes.txt") + query, headers=headers)
        assert (answer.status_code, answer.content) == (200, stored_files["notes.txt"])


@pytest.mark.parametrize("settings", ["gcs"], indirect=True)
def test_a_bucket_that_does_not_answer_is_told(gcs, client, job_id, stored_files):
    gcs.simulator.faults.fail(403, 100)
    for path in (f"/jobs/{job_id}/artifacts", url(job_id, "notes.txt"), f"/ui/jobs/{job_id}/artifacts"):
        answer = client.get(path)
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "2")
    gcs.simulator.faults.clear_faults()
    assert client.get(url(job_id, "notes.txt")).content == stored_files["notes.txt"]


def test_a_path_that_is_not_utf8_is_refused(client, job_id):
    answer = client.get(f"/jobs/{job_id}/artifacts/file/notes%FF.txt")
    assert (answer.status_code, "UTF-8" in answer.json()["error"]["message"]) == (400, True), answer.text


@pytest.mark.usefixtures("stored_files")
@pytest.mark.parametrize("path", ["model", "notes.tx", ""])
def test_a_path_that_is_only_the_beginning_of_others_is_no_file_of_a_zip(client, job_id, path):
    answer = client.get(f"/jobs/{job_id}/artifacts.zip", params={"path": ["notes.txt", path]})
    assert answer.status_code == 404
    assert f"No artifact at {path!r}" in answer.json()["error"]["message"]


def test_many_files_come_joined_in_the_order_of_the_list(client, job_id, stored_files):
    listed = client.get(f"/jobs/{job_id}/artifacts").json()["files"]
    paths = [file["path"] for file in listed]
    for chosen in (paths, paths[3:5], paths[-1:]):
        # Named in any order, and twice: the list decides.
        answer = client.post(f"/jobs/{job_id}/artifacts/contents", json={"paths": [*reversed(chosen), chosen[0]]})
        assert answer.status_code == 200
        files = [file for file in listed if file["path"] in chosen]
        assert len(answer.content) == int(answer.headers["Content-Length"]) == sum(file["size"] for file in files)
        at = 0
        for file in files:
            content = answer.content[at : at + file["size"]]
            assert hashlib.sha256(content).hexdigest() == file["sha256"]
            at += file["size"]
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert len(paths) == len(stored_files)


@pytest.mark.usefixtures("stored_files")
@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"paths": ["notes.txt", "missing"]}, 404),
        ({"paths": ["../notes.txt"]}, 404),
        ({"paths": ["zzz"]}, 404),
        ({"paths": [""]}, 404),
        ({"paths": []}, 422),
        ({"paths": ["x"] * 10_001}, 422),
        ({"paths": [1]}, 422),
        ({}, 422),
    ],
)
def test_joined_files_that_are_not_listed_are_refused(client, job_id, body, status):
    assert client.post(f"/jobs/{job_id}/artifacts/contents", json=body).status_code == status


def test_files_of_a_running_job_are_not_joined(client, job_id, worker, stores, folder):
    worker.start()
    (folder / "growing").write_bytes(b"so far")
    stores.artifacts.sync(job_id, 1, folder)
    assert client.get(f"/jobs/{job_id}/artifacts").json()["files"][0]["sha256"] is None
    assert client.post(f"/jobs/{job_id}/artifacts/contents", json={"paths": ["growing"]}).status_code == 404
