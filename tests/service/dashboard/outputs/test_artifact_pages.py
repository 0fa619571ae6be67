"""Folders, previews, and nothing a job left that runs in a browser."""

import hashlib
import io
import os
import re
import zipfile
from html import unescape
from urllib.parse import quote

import pytest
from support.live_service import make_job_body

FILES = {
    "models/final/weights.bin": bytes(range(256)) * 10,
    "models/epoch-1.txt": b"one",
    "plots/loss.png": b"\x89PNG\r\n\x1a\n",
    "page.html": b"<script>alert(1)</script><img src='plots/loss.png'><img src='../up.png'>",
    "plot.svg": b"<svg onload='alert(1)'/>",
    "notes.txt": "grüße & <b>\n".encode(),
    "<img src=x onerror=alert(1)>.txt": b"x",
    "ünï 🚀 #1?%41.txt": b"odd",
    "long.log": b"0123456789\n" * 30_000,
    "long.csv": b"0123456789\n" * 30_000,
    "one-line.txt": b"0123456789\n" + b"0123456789" * 32_999,
    "empty.txt": b"",
}


@pytest.fixture
def job_id(client):
    return client.post("/jobs", json=make_job_body(name="trained")).json()["id"]


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "left"
    for name, content in FILES.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    (folder / "a-link").symlink_to("/etc/passwd")
    return folder


@pytest.fixture
def ended_job_id(job_id, worker, stores, folder):
    job = worker.start()
    stores.artifacts.close(job_id, 1, folder)
    worker.end(job, exit_code=0)
    return job_id


def test_a_lone_folder_is_opened_and_the_newest_files_are_offered_first(
    signed_in_browser, job_id, worker, stores, tmp_path
):
    checkpoints = tmp_path / "left" / "checkpoints"
    checkpoints.mkdir(parents=True)
    for number in range(6):
        (checkpoints / f"{number}.pt").write_bytes(b"x")
        os.utime(checkpoints / f"{number}.pt", (1_700_000_000 + number,) * 2)
    job = worker.start()
    stores.artifacts.close(job_id, 1, tmp_path / "left")
    worker.end(job, exit_code=0)
    page = signed_in_browser.get(f"/ui/jobs/{job_id}").text
    assert re.findall(r'artifacts/file/checkpoints/(\d).pt" aria-label="Download', page) == ["5", "4", "3", "2"]
    opened = signed_in_browser.get(f"/ui/jobs/{job_id}/artifacts", follow_redirects=True)
    assert opened.url.params["folder"] == "checkpoints/"
    assert "0.pt" in opened.text


def look(signed_in_browser, job_id, path):
    return signed_in_browser.get(f"/ui/jobs/{job_id}/artifacts/view", params={"path": path})


def test_text_is_shown_as_text(signed_in_browser, ended_job_id):
    page = look(signed_in_browser, ended_job_id, "notes.txt").text
    assert "grüße &amp; &lt;b&gt;\n</pre>" in page
    assert hashlib.sha256(FILES["notes.txt"]).hexdigest() in page
    assert "The file is empty." in look(signed_in_browser, ended_job_id, "empty.txt").text


def test_a_file_is_shown_beside_its_folder_with_the_files_before_and_after_it(signed_in_browser, ended_job_id):
    listed = signed_in_browser.get(f"/ui/jobs/{ended_job_id}/artifacts").text
    files = re.findall(r'class="name"><a href="([^"]*/view[^"]*)"', listed)
    assert len(files) > 3
    for before, file, after in zip(files, files[1:], files[2:], strict=False):
        page = signed_in_browser.get(file.replace("&amp;", "&")).text
        assert (step(page, "prev"), step(page, "next")) == (before, after)
        assert re.findall(r'<a href="([^"]*)" aria-current="page"><span>', page) == [file]
    assert step(signed_in_browser.get(files[0].replace("&amp;", "&")).text, "prev") is None
    assert (
        "<title>notes.txt · trained · Gradient Jobs</title>" in look(signed_in_browser, ended_job_id, "notes.txt").text
    )


def step(page, rel):
    match = re.search(rf'data-step="{rel}" href="([^"]*)"', page)
    return match and match[1]


def test_of_a_long_text_any_line_is_shown_and_found(signed_in_browser, client, ended_job_id):
    page = look(signed_in_browser, ended_job_id, "long.log").text
    assert f'data-log="/jobs/{ended_job_id}/artifacts/lines?path=long.log"' in page
    assert "Lines 1 to 500 of 30,000." in page
    later = unescape(re.search(r'href="([^"]+)" rel="next"', page)[1])
    assert "Lines 501 to 1,000 of 30,000." in signed_in_browser.get(later).text
    view = f"/ui/jobs/{ended_job_id}/artifacts/view?path=long.log&view=lines"
    assert "is in no line." in signed_in_browser.get(f"{view}&find=zebra").text
    assert ">line 100</a>, and more." in signed_in_browser.get(f"{view}&find=0123").text
    lines = f"/jobs/{ended_job_id}/artifacts/lines"
    last = client.get(lines, params={"path": "long.log", "tail": 1}).json()
    assert last == {"lines": [{"line": 30_000, "message": "0123456789"}], "total": 30_000, "complete": True}
    found = client.get(f"{lines}/search", params={"path": "long.log", "query": "789", "line": 29_998}).json()
    assert found == {"lines": [29_999, 30_000], "searchedTo": 30_000, "complete": True, "texts": None}
    assert client.get(lines, params={"path": "models/final/weights.bin"}).status_code == 400
    assert client.get(lines, params={"path": "none.txt"}).status_code == 404


def test_the_source_of_a_preview_leads_to_all_its_lines(signed_in_browser, ended_job_id):
    page = look(signed_in_browser, ended_job_id, "long.csv").text
    assert "The first 256 KiB." in page
    address = unescape(re.search(r'<a href="([^"]+view=lines)">Show all lines', page)[1])
    assert "of 30,000." in signed_in_browser.get(address).text


@pytest.mark.parametrize("name", ["page.html", "plot.svg"])
def test_what_could_run_is_shown_as_its_source_and_never_inline(signed_in_browser, ended_job_id, name):
    page = look(signed_in_browser, ended_job_id, name).text
    assert "alert(1)" in page
    assert FILES[name].decode() not in page
    assert "inline=1" not in page
    answer = signed_in_browser.get(f"/jobs/{ended_job_id}/artifacts/file/{name}?inline=1")
    assert answer.headers["content-type"] == "application/octet-stream"
    assert answer.headers["content-disposition"].startswith("attachment")
    assert answer.headers["content-security-policy"] == "sandbox; default-src 'none'"


def test_images_are_shown_by_their_own_address(signed_in_browser, ended_job_id):
    page = look(signed_in_browser, ended_job_id, "plots/loss.png").text
    source = re.search(r'<figure class="preview"><img src="([^"]+)"', page)[1]
    answer = signed_in_browser.get(source)
    assert (answer.content, answer.headers["content-type"]) == (FILES["plots/loss.png"], "image/png")
    assert answer.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("name", ["<img src=x onerror=alert(1)>.txt", "ünï 🚀 #1?%41.txt"])
def test_odd_names_are_escaped_and_found(signed_in_browser, ended_job_id, name):
    # A percent sign that could be an escape is itself escaped in public paths.
    answer = look(signed_in_browser, ended_job_id, name.replace("%41", "%2541"))
    assert answer.status_code == 200
    assert "<img src=x" not in answer.text
    assert "<img src=x" not in signed_in_browser.get(f"/ui/jobs/{ended_job_id}/artifacts").text


@pytest.mark.parametrize(
    "path",
    [
        "../../session.key",
        "..",
        "/etc/passwd",
        "models/../notes.txt",
        "a-link",
        "models",
        "",
        "%2e%2e/x",
        "nope",
    ],
)
def test_nothing_but_the_jobs_own_files_is_reached(signed_in_browser, ended_job_id, path):
    answer = look(signed_in_browser, ended_job_id, path)
    assert (answer.status_code, "<h1>There is nothing here</h1>" in answer.text) == (404, True)
    raw = signed_in_browser.get(f"/ui/jobs/{ended_job_id}/artifacts/view?path={quote(path, safe='')}")
    assert raw.status_code == 404


@pytest.mark.parametrize("asked", ["../", "../..", "nope", "notes.txt", "models/fin"])
def test_a_folder_that_is_none_is_not_found(signed_in_browser, ended_job_id, asked):
    assert signed_in_browser.get(f"/ui/jobs/{ended_job_id}/artifacts", params={"folder": asked}).status_code == 404


def test_a_running_job_shows_what_was_kept_so_far(signed_in_browser, job_id, worker, stores, folder):
    page = signed_in_browser.get(f"/ui/jobs/{job_id}/artifacts")
    assert "No files yet." in page.text
    worker.start()
    stores.artifacts.sync(job_id, 1, folder)
    page = signed_in_browser.get(f"/ui/jobs/{job_id}/artifacts")
    assert "The job is still running" in page.text
    assert "not yet" in page.text
    assert 'data-live="yes"' in page.text


def test_many_files_come_page_by_page(signed_in_browser, job_id, worker, stores, tmp_path, monkeypatch):
    monkeypatch.setattr("service.dashboard.outputs.artifact_pages.PAGE_ENTRIES", 3)
    left = tmp_path / "many"
    for number in range(7):
        (left / f"d{number}").mkdir(parents=True)
        (left / f"d{number}" / "x").write_bytes(b"x")
        (left / f"d{number}-f").write_bytes(b"f")
    job = worker.start()
    stores.artifacts.close(job_id, 1, left)
    worker.end(job, exit_code=0)
    seen, address = [], f"/ui/jobs/{job_id}/artifacts"
    while address:
        page = signed_in_browser.get(address).text
        seen += re.findall(r">(d\d(?:/|-f))</a>", page)
        following = re.search(r'rel="next" href="([^"]+)"', page)
        address = following[1].replace("&amp;", "&") if following else None
    assert sorted(seen) == sorted(f"d{number}{end}" for number in range(7) for end in ("/", "-f"))


def test_folders_have_sizes_and_entries_an_order(signed_in_browser, ended_job_id):
    address = f"/ui/jobs/{ended_job_id}/artifacts"
    page = signed_in_browser.get(address).text
    assert re.search(r'>models/</a></th>\s*<td data-label="Size" class="number nowrap">2.6 kB</td>', page)
    assert "2 files</td>" in page
    names = re.findall(
        r'class="name"><a href="[^"]*view[^"]*">([^<]+)</a>', signed_in_browser.get(f"{address}?order=-size").text
    )
    assert names[0] == "one-line.txt"
    assert names[-1] == "empty.txt"
    assert signed_in_browser.get(f"{address}?order=colour").status_code == 422


def test_files_are_found_in_and_below_a_folder(signed_in_browser, ended_job_id):
    address = f"/ui/jobs/{ended_job_id}/artifacts"
    page = signed_in_browser.get(address, params={"find": "WEIGHTS"}).text
    assert ">final/weights.bin</a>" in signed_in_browser.get(f"{address}?folder=models&find=weights").text
    assert ">models/final/weights.bin</a>" in page
    assert "notes.txt" not in page
    assert "No file in this folder has" in signed_in_browser.get(address, params={"find": "<nothing>"}).text


def test_the_images_of_a_folder_are_a_gallery(signed_in_browser, ended_job_id):
    page = signed_in_browser.get(f"/ui/jobs/{ended_job_id}/artifacts?folder=plots/").text
    address = re.search(r'<a href="([^"]+)">Gallery of 1 image</a>', page)[1].replace("&amp;", "&")
    gallery = signed_in_browser.get(address).text
    assert f'<img src="/jobs/{ended_job_id}/artifacts/file/plots/loss.png?inline=1" alt="" loading="lazy">' in gallery


def test_a_selection_is_downloaded_as_a_zip(signed_in_browser, ended_job_id):
    page = signed_in_browser.get(f"/ui/jobs/{ended_job_id}/artifacts").text
    address = f"/ui/jobs/{ended_job_id}/artifacts/selected"
    assert f'<form method="get" action="{address}">' in page
    assert '<input type="checkbox" name="path" value="models/" aria-label="Select models">' in page
    packed = signed_in_browser.get(address, params={"path": ["models/", "notes.txt"]})
    assert packed.headers["content-disposition"] == f"attachment; filename*=UTF-8''{ended_job_id}.zip"
    names = zipfile.ZipFile(io.BytesIO(packed.content)).namelist()
    chosen = ("models/epoch-1.txt", "models/final/weights.bin", "notes.txt")
    files = sorted(name for name in names if not name.endswith("/"))
    assert files == [f"{ended_job_id}/{name}" for name in chosen]


def test_an_empty_selection_is_not_all_files(signed_in_browser, ended_job_id):
    page = signed_in_browser.get(f"/ui/jobs/{ended_job_id}/artifacts").text
    action = re.search(r'<form method="get" action="([^"]+)">\s*<table', page)[1]
    refused = signed_in_browser.get(action, headers={"Accept": "text/html"})
    assert (refused.status_code, "Nothing is selected." in refused.text) == (400, True)


def test_html_is_framed_without_rights(signed_in_browser, ended_job_id):
    page = look(signed_in_browser, ended_job_id, "page.html")
    assert "frame-src 'self'" in page.headers["content-security-policy"]
    address = re.search(r'<iframe class="preview" sandbox src="([^"]+)"', page.text)[1].replace("&amp;", "&")
    frame = signed_in_browser.get(address)
    assert frame.content.startswith(FILES["page.html"].partition(b"<img")[0])
    assert frame.content.count(b"src='data:image/png;base64,") == 1, "the picture beside it, and none of above"
    assert frame.headers["content-security-policy"].startswith("sandbox; default-src 'none';")
    assert frame.headers["x-frame-options"] == "SAMEORIGIN"
    assert signed_in_browser.get(address, headers={"Sec-Fetch-Dest": "document"}).status_code == 404


def test_a_drawing_is_an_image_that_loads_nothing(signed_in_browser, ended_job_id):
    page = look(signed_in_browser, ended_job_id, "plot.svg").text
    assert '<figure class="preview"><img src="data:image/svg+xml;base64,' in page


def test_a_text_of_long_lines_has_its_other_parts(signed_in_browser, ended_job_id):
    page = look(signed_in_browser, ended_job_id, "one-line.txt").text
    address = re.search(r'rel="next" href="([^"]+)"', page)[1].replace("&amp;", "&")
    last = signed_in_browser.get(address).text
    assert "Bytes 262,144 to 330,001 of 330,001." in last
    assert 'rel="prev"' in last


def test_markdown_that_is_not_rendered_says_so(signed_in_browser, job_id, worker, stores, folder):
    (folder / "a.md").write_text("> " * 25 + "<deep>")
    (folder / "many.zip").write_bytes(many_members())
    (folder / "half.json").write_bytes(b'{"a": "\\ud800"}')  # half of a surrogate pair
    job = worker.start()
    stores.artifacts.close(job_id, 1, folder)
    worker.end(job, exit_code=0)
    page = look(signed_in_browser, job_id, "a.md").text
    assert "Shown as plain text: Markdown is not rendered if it is larger than 128 KiB, deeply nested" in page
    assert "&lt;deep&gt;</pre>" in page
    assert "\\ud800" in look(signed_in_browser, job_id, "half.json").text
    assert (
        "1,020 members: the first 1,000 are shown, 20 more are in the file."
        in look(signed_in_browser, job_id, "many.zip").text
    )


def many_members():
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for number in range(1020):
            archive.writestr(str(number), b"")
    return packed.getvalue()
