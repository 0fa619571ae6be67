"""Outputs of ended jobs: links that work without a key, S3's protocol, and their limits."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from urllib.parse import quote
from xml.etree import ElementTree as ET

import pytest
from support.live_service import wait_until

from core.settings.limits import LimitSettings
from core.storage.artifacts.manifests import ArtifactFile
from service.auth.per_key_limits import Limits
from service.original.routes import s3_read

FILES = {"out.txt": b"42\n", "sub/a b.bin": bytes(range(256)), "ünï & <x>.txt": b"x", "a\x01b": b"odd"}
TOKEN = "x-amz-security-token"


@pytest.fixture
def job(client, worker, stores, tmp_path):
    """An ended job with files, and another one."""
    job_id = client.post("/jobs/createJob", json={"command": "true", "machineType": "CPU"}).json()["id"]
    running = worker.start()
    for name, content in FILES.items():
        path = tmp_path / "left" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    stores.artifacts.close(job_id, 1, tmp_path / "left")
    worker.end(running, exit_code=0)
    return job_id


@pytest.fixture
def links(client, job):
    listed = client.get("/jobs/artifactsList", params={"jobId": job, "links": "True"}).json()
    return {one["file"]: one["url"] for one in listed}


def test_links_work_without_any_header(links, anonymous_client):
    assert {name: anonymous_client.get(url).content for name, url in links.items()} == FILES
    part = anonymous_client.get(links["sub/a b.bin"], headers={"Range": "bytes=1-2"})
    assert (part.status_code, part.content) == (206, b"\x01\x02")


@pytest.mark.parametrize("change", ["stamp", "path", "job", "none"])
def test_a_link_is_good_for_one_file_alone(links, anonymous_client, change, job):
    url = links["out.txt"]
    changed = {
        "stamp": url[:-2] + ("A" if url[-2] != "A" else "B") + url[-1],
        "path": url.replace("out.txt", "sub/a%20b.bin"),
        "job": url.replace(job, "j" + job[1:][::-1]),
        "none": url.partition("?")[0],
    }[change]
    answer = anonymous_client.get(changed)
    assert (answer.status_code, answer.json()["error"]["name"]) == (401, "Unauthorized")


def test_a_link_expires_after_eight_hours(client, job, anonymous_client, monkeypatch):
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now - 8 * 3600 + 60)
    [one] = client.get("/jobs/artifactsList", params={"jobId": job, "files": "out.txt", "links": "1"}).json()
    monkeypatch.setattr(time, "time", lambda: now)
    assert anonymous_client.get(one["url"]).status_code == 200
    monkeypatch.setattr(time, "time", lambda: now + 61)
    assert anonymous_client.get(one["url"]).status_code == 401


def test_a_link_of_a_deleted_job_leads_nowhere(client, links, anonymous_client, job):
    client.delete(f"/jobs/{job}")
    assert anonymous_client.get(links["out.txt"]).status_code == 404


@pytest.mark.parametrize(
    ("files", "found"),
    [
        ("out.txt", ["out.txt"]),
        ("sub/*", ["sub/a b.bin"]),
        ("*.txt", ["out.txt", "ünï & <x>.txt"]),
        ("sub/*, out.txt", ["out.txt", "sub/a b.bin"]),
        ("out", []),
        ("*a*a*a*a*a*a*a*a*a*a*a*a*a*b*", []),
    ],
)
def test_files_are_named_by_patterns(client, job, files, found):
    listed = client.get("/jobs/artifactsList", params={"jobId": job, "files": files}).json()
    assert [one["file"] for one in listed] == found


def test_a_long_pattern_is_refused_before_a_file_is_compared(client, job):
    """One comparison of a long pattern with a long path takes seconds, in which this process does nothing else."""
    given = {"files": "*" + "[ab]" * 5000 + "c"}
    for answer in (
        client.request("GET", "/jobs/artifactsList", json={"jobId": job} | given),
        client.post(f"/jobs/{job}/artifactsDestroy", json=given),
    ):
        assert answer.status_code == 400, answer.text
        assert "a pattern has 20,002 characters; at most 255" in answer.text


@pytest.mark.parametrize("given", [{"json": {"files": ""}}, {"params": {"files": ""}}])
def test_an_empty_list_of_files_deletes_none(client, job, given):
    answer = client.post(f"/jobs/{job}/artifactsDestroy", **given)
    assert answer.status_code == 400, answer.text
    assert "files: empty" in answer.text
    listed = client.get("/jobs/artifactsList", params={"jobId": job}).json()
    assert [one["file"] for one in listed] == sorted(FILES)


def test_comparing_files_with_patterns_ends(client, job, monkeypatch):
    """Many patterns and many files, each of them short."""
    monkeypatch.setattr("service.original.routes.artifacts.MATCH_SECONDS", -1.0, raising=False)
    answer = client.get("/jobs/artifactsList", params={"jobId": job, "files": "*.txt"})
    assert answer.status_code == 400, answer.text
    assert "fewer or shorter patterns" in answer.text


@pytest.fixture
def s3(client, job):
    given = client.get("/jobs/artifactsGet", params={"jobId": job}).json()
    return f"/_s3/{given['bucket']}", given["folder"], {TOKEN: given["Credentials"]["SessionToken"]}


def test_files_are_listed_and_read_by_s3_s_protocol(s3, anonymous_client):
    bucket, folder, headers = s3
    listed = anonymous_client.get(f"{bucket}/", params={"prefix": folder}, headers=headers)
    assert listed.headers["content-type"].startswith("application/xml")
    text = listed.text.replace("&#1;", "?")  # what XML has no place for
    space = {"s": "http://s3.amazonaws.com/doc/2006-03-01/"}
    keys = [one.text for one in ET.fromstring(text).findall("s:Contents/s:Key", space)]  # noqa: S314 - our own answer
    assert sorted(keys) == sorted(f"{folder}/{name}".replace("\x01", "?") for name in FILES)
    assert ET.fromstring(text).findtext("s:IsTruncated", namespaces=space) == "false"  # noqa: S314 - likewise
    for name, content in FILES.items():
        assert anonymous_client.get(f"{bucket}/{folder}/{quote(name)}", headers=headers).content == content


def test_s3_s_protocol_refuses_in_its_own_words(s3, anonymous_client, client):
    bucket, folder, headers = s3
    other = client.post("/jobs/createJob", json={"command": "true"}).json()["id"]
    for path, sent, status, code in [
        (bucket, {}, 403, "InvalidToken"),
        (bucket, {TOKEN: headers[TOKEN].replace(folder, other)}, 403, "InvalidToken"),
        (f"{bucket}/{other}/out.txt", headers, 403, "AccessDenied"),
        (f"{bucket}/{folder}/none", headers, 404, "NoSuchKey"),
        (f"{bucket}/{folder}/../../session.key", headers, 403, "AccessDenied"),
        (f"{bucket}/{folder}/%2e%2e/x", headers, 403, "AccessDenied"),
        ("/_s3/elsewhere", headers, 404, "NoSuchBucket"),
    ]:
        answer = anonymous_client.get(path, headers=sent)
        assert answer.status_code in {status, 404}, (path, answer.text)
        assert f"<Code>{code}</Code>" in answer.text or answer.status_code == 404


def test_a_long_list_of_s3_s_protocol_is_sent_in_large_pieces():
    """Each piece is a hop to another thread, which costs more than the lines of one file."""
    files = [ArtifactFile(f"folder/{number}.bin", number, 1_700_000_000_000, None) for number in range(5000)]
    job = SimpleNamespace(id="j1")
    pieces = list(s3_read.list_xml(job, iter(files), ""))
    text = "".join(pieces)
    assert text.count("<Contents>") == text.count("</Contents>") == 5000
    assert text.endswith("</ListBucketResult>")
    assert len(pieces) <= len(text) // 65_536 + 1
    assert max(map(len, pieces)) < 65_536 + 1000
    [empty] = s3_read.list_xml(job, iter([]), "")
    assert empty.endswith("<IsTruncated>false</IsTruncated></ListBucketResult>")


def test_requests_by_s3_s_protocol_count_as_those_of_the_key(s3, client, anonymous_client, stores):
    bucket, folder, headers = s3
    stores.limits = Limits(LimitSettings(requests_per_minute=3))
    paths = (bucket, f"{bucket}/{folder}/out.txt", bucket, bucket)
    answers = [anonymous_client.get(path, headers=headers) for path in paths]
    assert [answer.status_code for answer in answers] == [200, 200, 200, 429]
    assert "<Code>SlowDown</Code>" in answers[-1].text
    assert "GRADIENT_LIMITS__REQUESTS_PER_MINUTE" in answers[-1].text
    assert 0 < int(answers[-1].headers["retry-after"]) <= 60
    assert client.get("/jobs").status_code == 429, "the token's key is over its limit"


def test_a_key_lists_few_files_at_once_by_s3_s_protocol(s3, anonymous_client, stores, monkeypatch):
    bucket, folder, headers = s3
    stores.limits = Limits(LimitSettings(searches=2), wait_seconds=0.2)
    go_on, began = threading.Event(), threading.Semaphore(0)

    def wait(*_args):
        began.release()
        assert go_on.wait(60)
        yield "<ListBucketResult/>"

    monkeypatch.setattr(s3_read, "list_xml", wait)
    with ThreadPoolExecutor(4) as pool:
        asked = [pool.submit(anonymous_client.get, bucket, headers=headers) for _ in range(4)]
        try:
            for _ in range(2):
                assert began.acquire(timeout=30)
            wait_until(lambda: sum(one.done() for one in asked) == 2)
            assert anonymous_client.get(f"{bucket}/{folder}/out.txt", headers=headers).status_code == 200
        finally:
            go_on.set()
        answers = [one.result(30) for one in asked]
    assert sorted(answer.status_code for answer in answers) == [200, 200, 429, 429]
    assert all("GRADIENT_LIMITS__SEARCHES" in answer.text for answer in answers if answer.status_code == 429)
    assert anonymous_client.get(bucket, headers=headers).status_code == 200, "the slots are free again"


def test_links_and_tokens_end_with_the_role_of_whoever_got_them(client, anonymous_client, job, bob):
    project = f"/projects/{client.get(f'/jobs/{job}').json()['projectId']}"
    client.patch(project, json={"closed": True})
    member = f"{project}/members/{bob[0]}"
    assert client.put(member, json={"role": "viewer"}).status_code == 200
    asked = {"jobId": job, "files": "out.txt", "links": "1"}
    [listed] = client.get("/jobs/artifactsList", params=asked, headers=bob[1]).json()
    given = client.get("/jobs/artifactsGet", params={"jobId": job}, headers=bob[1]).json()
    token = {TOKEN: given["Credentials"]["SessionToken"]}
    s3_file = f"/_s3/{given['bucket']}/{job}/out.txt"

    def status():
        links = anonymous_client.get(listed["url"]), anonymous_client.get(s3_file, headers=token)
        return [link.status_code for link in links]

    assert status() == [200, 200]
    assert client.delete(member).status_code == 204
    assert status() == [404, 404]
