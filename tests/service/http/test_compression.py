"""Compression of responses: pages, lists and scripts, but no artifacts, raw logs or streams."""

import pytest
from support.live_service import make_job_body

from service.dashboard.assets import asset_url

GZIP = {"Accept-Encoding": "gzip"}


@pytest.fixture
def job_id(client, worker, stores, tmp_path):
    """A job that ended, with a long log and a large artifact."""
    created = client.post("/jobs", json=make_job_body()).json()["id"]
    job = worker.start()
    (tmp_path / "left").mkdir()
    (tmp_path / "left" / "data.txt").write_bytes(b"text " * 2000)
    with stores.logs.open_writer(created, 1) as log:
        log.append(b"a line\n" * 2000, 1000)
    stores.artifacts.close(created, 1, tmp_path / "left")
    worker.end(job, exit_code=0)
    return created


def test_pages_logs_and_scripts_are_compressed(client, job_id):
    for address in (f"/ui/jobs/{job_id}", f"/jobs/{job_id}/logs", "/jobs", asset_url("style.css")):
        whole = client.get(address, headers={"Accept-Encoding": "identity"})
        answer = client.get(address, headers=GZIP)
        assert "content-encoding" not in whole.headers
        assert answer.headers["content-encoding"] == "gzip", address
        assert "accept-encoding" in answer.headers["vary"].lower()
        assert int(answer.headers["content-length"]) < len(answer.content) / 1.5
    assert client.get(f"/jobs/{job_id}/logs", headers=GZIP).json()["lines"][1999]["message"] == "a line"


def test_what_never_changes_is_not_sent_twice(anonymous_client):
    for address in ("/openapi.json", anonymous_client.get("/client").text.strip(), asset_url("style.css")):
        for encoding in (GZIP, {"Accept-Encoding": "identity"}):
            answer = anonymous_client.get(address, headers=encoding)
            again = anonymous_client.get(address, headers=encoding | {"If-None-Match": answer.headers["etag"]})
            assert (answer.status_code, again.status_code, again.content) == (200, 304, b""), address


def test_the_bytes_of_jobs_and_streams_are_not(client, job_id):
    for address in ("artifacts/file/data.txt", "artifacts/file/data.txt?inline=1", "logs/raw", "artifacts.zip"):
        answer = client.get(f"/jobs/{job_id}/{address}", headers=GZIP)
        assert (answer.status_code, answer.headers.get("content-encoding")) == (200, None), address
    part = client.get(f"/jobs/{job_id}/artifacts/file/data.txt", headers=GZIP | {"Range": "bytes=5-2004"})
    assert (part.status_code, part.content) == (206, b"text " * 400)
    with client.stream("GET", f"/jobs/{job_id}/logs", headers=GZIP | {"Accept": "text/event-stream"}) as stream:
        assert "content-encoding" not in stream.headers
